"""Losses that correct for uneven labels: the same in torch and in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedraw.errors import BadInput
from fedraw.learning.batched import BatchedClient, BatchedTrainer, ClientSamples
from fedraw.learning.losses import logit_shift
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer

COUNTS = np.array([16, 1])
INPUTS = np.random.default_rng(0).normal(size=(17, 3)).astype(np.float32)
LABELS = np.array([0] * 9 + [2] * 8)  # label 1 is absent


def loss(shift: Any, label: int) -> float:
    scores = torch.zeros(1, len(shift)) + torch.from_numpy(shift)
    return functional.cross_entropy(scores, torch.tensor([label])).item()


@pytest.mark.parametrize(
    ("kind", "common", "rare"), [("fedlc", 0.4741, 0.9741), ("logit-adjusted", 0.0606, 2.8332)]
)
def test_losses_of_a_common_and_a_rare_label(kind: Any, common: float, rare: float) -> None:
    shift = logit_shift(COUNTS, kind)
    assert loss(shift, 0) == pytest.approx(common, abs=5e-5)
    assert loss(shift, 1) == pytest.approx(rare, abs=5e-5)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any), st.floats(0.01, 3))
def test_a_shift_grows_with_the_count_and_masks_absent_labels(
    counts: list[int], tau: float
) -> None:
    for kind in ("fedlc", "logit-adjusted"):
        shift = logit_shift(counts, kind, tau)
        assert np.array_equal(np.isneginf(shift), np.array(counts) == 0)
        order = np.argsort(counts, kind="stable")
        assert (np.diff(shift[order][np.isfinite(shift[order])]) >= 0).all()


def test_equal_counts_are_cross_entropy_over_the_held_labels() -> None:
    for kind in ("fedlc", "logit-adjusted"):
        shift = logit_shift([7, 0, 7], kind)
        assert loss(shift, 2) == pytest.approx(np.log(2))


def test_with_tau_0_nothing_is_shifted_or_masked() -> None:
    assert logit_shift([4, 0], "fedlc", 0.0).tolist() == [0.0, 0.0]
    assert SGD(loss="fedlc", tau=0.0).shift([4, 0]) is None
    assert SGD().shift([4, 0]) is None


def test_a_global_prior_uses_the_counts_of_all_clients() -> None:
    sgd = SGD(loss="logit-adjusted", prior="global")
    shift = sgd.shift([5, 0], [5, 15])
    assert shift is not None
    assert np.exp(shift).tolist() == pytest.approx([0.25, 0.75])
    with pytest.raises(ValueError, match="needs the label counts of all clients"):
        sgd.shift([5, 0])


@pytest.mark.parametrize("more", [{}, {"momentum": 0.5, "weight_decay": 0.01}])
@pytest.mark.parametrize(
    "own", [{"loss": "fedlc", "tau": 2.0}, {"loss": "logit-adjusted"}], ids=lambda own: own["loss"]
)
def test_closed_form_and_autograd_agree(own: Any, more: Any) -> None:
    sgd = SGD(batch=4, **own, **more)
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    shift = sgd.shift(np.bincount(LABELS))
    start = np.random.default_rng(1).normal(size=38).astype(np.float32)
    rng = np.random.default_rng
    torch_way = Trainer(module, sgd).train(start, INPUTS, LABELS, rng(2), shift=shift)
    samples = ClientSamples(lambda rows: INPUTS[rows], LABELS, (3,), largest=17)
    stacked = BatchedTrainer(module, sgd, samples)
    plain = BatchedClient(start, slice(0, 17), rng(2))
    shifted = BatchedClient(start, slice(0, 17), rng(2), shift=shift)
    together = stacked.train([plain, shifted])
    np.testing.assert_allclose(together[1], torch_way, atol=2e-6)
    alone = BatchedTrainer(module, SGD(batch=4, **more), samples).train(
        [plain._replace(rng=rng(2))]
    )
    assert np.array_equal(together[0], alone[0])  # a neighbour's shift changes nothing
    if not more:  # the output layer's row and bias of the absent label never move
        moved = (torch_way - start)[20:].reshape(-1)
        weight, bias = moved[:15].reshape(3, 5), moved[15:]
        assert not weight[1].any()
        assert bias[1] == 0
        assert bias[0] != 0


def test_the_reported_loss_stays_plain_cross_entropy() -> None:
    module, start = nn.Linear(3, 3), np.zeros(12, np.float32)
    trainer = Trainer(module, SGD(loss="fedlc"))
    assert trainer.mean_loss(start, INPUTS, LABELS) == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"loss": "focal"},
            "loss = 'focal' must be 'cross-entropy' or 'fedlc' or 'logit-adjusted'",
        ),
        ({"tau": 0.5}, r"tau = 0\.5 goes with loss"),
        ({"loss": "fedlc", "tau": -1.0}, r"tau = -1\.0 must be at least 0"),
        ({"loss": "fedlc", "tau": float("nan")}, "tau = nan"),
        ({"loss": "fedlc", "prior": "global"}, "goes with loss = 'logit-adjusted'"),
        ({"loss": "fedlc", "label_smoothing": 0.1}, "leave one of them out"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        SGD(**wrong)


@pytest.mark.parametrize("counts", [[], [0, 0], [1, -1], [[1, 2]], [1, np.inf]])
def test_invalid_counts_are_refused(counts: Any) -> None:
    with pytest.raises(BadInput, match="one number of samples for each label"):
        logit_shift(counts, "fedlc")
