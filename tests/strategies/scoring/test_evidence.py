"""What updates say about labels: proofs from rises, doubt from silence, shares from how much."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedraw.strategies.scoring.evidence import (
    FALSE_RISE,
    HAZARD,
    MEMORY,
    RISE_ALPHA,
    RISE_BETA,
    ClientEvidence,
)

CHANGES = st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4).map(np.array)


def observed(*changes: list[float]) -> ClientEvidence:
    evidence = ClientEvidence.none(labels=len(changes[0]))
    for change in changes:
        evidence.observe(np.array(change))
    return evidence


def test_the_first_update_by_hand() -> None:
    """Prior 1/2; a rise has probability 3/4 if the label is there, 1/10,000 if it is not."""
    rate = RISE_ALPHA / (RISE_ALPHA + RISE_BETA)
    assert (rate, FALSE_RISE) == (0.75, 1e-4)
    own = observed([0.3, 0.1, -0.4])
    rose, fell = 0.75 / (0.75 + 1e-4), 0.25 / (0.25 + 1 - 1e-4)
    assert own.presence == pytest.approx([rose, rose, fell])
    assert own.share == pytest.approx([0.75, 0.25, 0])
    assert own.silence_probability == pytest.approx([1, 1, 0.25])
    assert own.risen.tolist() == [1, 1, 0]


def test_the_longer_a_label_is_silent_the_less_each_further_silence_says() -> None:
    own = observed(*[[1.0, -1.0]] * 5)
    # 1 - 1.5/2, 1 - 1.5/3, …, 1 - 1.5/6
    assert own.silence_probability[1] == pytest.approx(0.25 * 0.5 * 0.625 * 0.7 * 0.75)
    steps = [observed(*[[1.0, -1.0]] * n).presence[1] for n in range(1, 6)]
    assert steps == sorted(steps, reverse=True)


def test_one_rise_outweighs_a_long_silence() -> None:
    own = observed(*[[1.0, -1.0]] * 20, [-1.0, 1.0])
    assert own.presence[1] > 0.8
    assert own.silence.tolist() == [1, 0]


def test_a_label_that_went_away_is_given_up_and_one_that_came_is_found() -> None:
    own = observed(*[[1.0, -1.0]] * 30, *[[-1.0, 1.0]] * 60)
    assert own.presence[0] < 0.5 < own.presence[1]
    assert own.share[0] < MEMORY**60 * 30


def test_a_label_that_is_not_there_never_comes_to_be_believed() -> None:
    """Presence may come back at any time (HAZARD), but silence keeps it low for ever."""
    own = observed(*[[1.0, -1.0]] * 5_000)
    assert own.presence[1] < 0.05
    assert own.presence[1] > HAZARD


@given(st.lists(CHANGES, min_size=1, max_size=12))
def test_presence_is_a_probability_and_shares_sum_to_one_or_nothing(
    changes: list[np.ndarray],
) -> None:
    own = observed(*[change.tolist() for change in changes])
    assert ((own.presence >= 0) & (own.presence <= 1)).all()
    assert (own.share >= 0).all()
    assert own.share.sum() == pytest.approx(1) or not own.risen.any()
    assert own.updates == len(changes)


@given(st.lists(CHANGES, min_size=1, max_size=8), st.floats(0.01, 100))
def test_the_size_of_an_update_does_not_matter(changes: list[np.ndarray], scale: float) -> None:
    one = observed(*[change.tolist() for change in changes])
    other = observed(*[(scale * change).tolist() for change in changes])
    assert other.presence == pytest.approx(one.presence)
    assert other.share == pytest.approx(one.share)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    held=st.sets(st.integers(0, 4), min_size=1, max_size=4),
    momentum=st.sampled_from([0.0, 0.9]),
    adam=st.booleans(),
)
def test_training_never_raises_the_output_bias_of_a_label_that_is_not_there(
    seed: int, held: set[int], momentum: float, adam: bool
) -> None:
    """The fact on which everything rests, for plain SGD, momentum and Adam, from any model."""
    torch.manual_seed(seed)
    head = nn.Linear(8, 5)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), head)
    with torch.no_grad():
        head.bias.copy_(torch.randn(5))
    before = head.bias.detach().clone()
    images = torch.randn(20, 6)
    labels = torch.tensor(sorted(held))[torch.randint(len(held), (20,))]
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(network.parameters(), lr=0.01)
        if adam
        else torch.optim.SGD(network.parameters(), lr=0.1, momentum=momentum)
    )
    for _ in range(3):
        for batch in torch.randperm(20).reshape(4, 5):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimiser.step()
    change = (head.bias.detach() - before).numpy()
    absent = [label for label in range(5) if label not in set(labels.tolist())]
    assert (change[absent] < 0).all()
