from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning import device as devices
from fedraw.learning.device import available, device_of, seeded
from fedraw.learning.features import features
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "", "meta", "cuda:-1"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(
        BadInput, match=f"device = '{name}' is not one of cpu, cuda.*available.*cpu"
    ):
        device_of(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_an_unavailable_device_is_refused_and_never_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "available", lambda: ["cpu"])
    words = f"device = '{name}' is not available to this torch build; available here: cpu"
    with pytest.raises(BadInput, match=words):
        Trainer(nn.Linear(1, 2), SGD(), device=name)
    with pytest.raises(BadInput, match=words):
        features(nn.Linear(1, 2), np.zeros((1, 1), np.float32), device=name)


def test_cuda_without_a_number_is_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert available()[:3] == ["cpu", "cuda:0", "cuda:1"]
    assert device_of("cuda") == torch.device("cuda", 0)
    with pytest.raises(BadInput, match=r"'cuda:2' is not .*: cpu, cuda:0, cuda:1"):
        device_of("cuda:2")


def test_seeded_draws_repeat_and_restore_the_generator() -> None:
    before = torch.random.get_rng_state()
    drawn = []
    for seed in (5, 5, 6):
        with seeded(torch.device("cpu"), seed):
            drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(RuntimeError, match="on the way"), seeded(torch.device("cpu"), 7):
        raise RuntimeError("on the way")
    assert torch.equal(before, torch.random.get_rng_state())
