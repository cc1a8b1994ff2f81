from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.vectors import FlatModule, layout_of, to_vector


class Tied(nn.Module):
    """The classifier uses the same matrix as the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embed(x))
        return scores


class SharedStorage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        values = torch.zeros(4)
        self.a, self.b = nn.Parameter(values), nn.Parameter(values)


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def count_up(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(size, dtype=np.float32)


def test_parameters_come_first_and_counters_are_left_out() -> None:
    layout = layout_of(normed())
    assert [segment.name for segment in layout.segments] == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("1.running_mean", "1.running_var"),
    ]
    assert (layout.parameters, layout.statistics) == (slice(0, 23), slice(23, 29))
    assert layout.head_bias is not None
    assert layout.head_bias.name == "2.bias"


def test_frozen_parameters_are_not_in_the_trainable_slice() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    layout = layout_of(module)
    assert layout.parameter_count == 8
    assert [segment.name for segment in layout.segments][2:] == ["0.weight", "0.bias"]


def test_a_loaded_vector_is_returned() -> None:
    flat = FlatModule(normed())
    flat.load(count_up(29))
    assert np.array_equal(flat.vector(), count_up(29))
    assert flat.module.get_buffer("1.running_mean").tolist() == [23, 24, 25]
    assert np.array_equal(to_vector(flat.module), count_up(29))


def test_a_flat_module_keeps_its_values() -> None:
    module = normed()
    before = to_vector(module)
    assert np.array_equal(FlatModule(module).vector(), before)


def test_a_loaded_vector_is_copied() -> None:
    vector = count_up(29)
    vector.setflags(write=False)
    flat = FlatModule(normed())
    flat.load(vector)
    flat.flat.zero_()
    assert vector[1] == 1
    assert not flat.vector().any()


def test_gradients_are_in_one_flat_tensor() -> None:
    flat = FlatModule(normed())
    torch.autograd.backward(flat.module(torch.randn(4, 2)).square().sum())
    parts = [p.grad for p in flat.module.parameters() if p.grad is not None]
    assert torch.equal(flat.grad, torch.cat([part.flatten() for part in parts]))
    assert flat.grad.any()


def test_statistics_learned_by_a_forward_pass_are_in_the_vector() -> None:
    flat = FlatModule(normed())
    before = flat.vector()
    flat.module(torch.randn(8, 2) + 5)
    changed = flat.vector() != before
    assert changed[23:].all()
    assert not changed[:23].any()


def test_counters_start_again_with_each_load() -> None:
    flat = FlatModule(normed())
    start = flat.vector()
    flat.module(torch.randn(8, 2))
    flat.load(start)
    assert flat.module.get_buffer("1.num_batches_tracked").item() == 0


def test_a_tied_parameter_has_one_place() -> None:
    flat = FlatModule(Tied())
    assert [s.name for s in flat.layout.segments] == ["embed.weight", "head.bias"]
    flat.load(count_up(12))
    head, embed = (
        flat.module.get_parameter("head.weight"),
        flat.module.get_parameter("embed.weight"),
    )
    assert head is embed
    assert head.flatten().tolist() == list(range(9))


def test_memory_shared_by_two_parameters_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'a' and 'b' share memory.*same Parameter"):
        FlatModule(SharedStorage())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Linear(2, 2).double(), r"'weight' is torch.float64.*\.float\(\)"),
        (nn.LazyLinear(2), "'weight' has no shape yet"),
        (nn.ReLU(), "no parameters"),
    ],
)
def test_modules_that_have_no_vector_are_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        layout_of(module)


def test_a_vector_of_another_model_is_refused() -> None:
    with pytest.raises(BadInput, match=r"shape \(4,\) does not fit this model of 29"):
        FlatModule(normed()).load(count_up(4))


def test_a_model_on_another_device_uses_a_host_copy() -> None:
    flat = FlatModule(normed(), torch.device("cpu"))
    flat._host = flat.flat.clone()  # what another device than the cpu has from the start
    flat._array = flat._host.numpy()
    flat.load(count_up(29))
    assert flat.flat.tolist() == list(range(29))
    flat.flat.add_(1)
    assert np.array_equal(flat.vector(), count_up(29) + 1)
