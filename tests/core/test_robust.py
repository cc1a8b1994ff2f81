"""Robust means: by hand, and what one bad update can do at most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.buffer import Slot
from fedraw.core.robust import Robust, robust_mean
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.strategies.fedavg import FedAvg

ZERO = np.zeros(2, np.float32)


def slots(*rows: tuple[float, ...], weights: list[float] | None = None) -> list[Slot]:
    weights = weights or [1.0] * len(rows)
    made = [Update(i, 0, np.array(row, np.float32), 1) for i, row in enumerate(rows)]
    return [Slot(update, weight) for update, weight in zip(made, weights, strict=True)]


def test_clipping_keeps_the_direction_and_cuts_the_norm_to_the_median() -> None:
    # The norms are 1, 2, 5; the median is 2. (3, 4) becomes (1.2, 1.6).
    found = robust_mean(slots((1, 0), (0, 2), (3, 4)), ZERO, "clip", 1.0)
    assert found == pytest.approx([2.2 / 3, 3.6 / 3])


def test_clipping_is_around_the_current_model() -> None:
    center = np.array([10, 10], np.float32)
    found = robust_mean(slots((11, 10), (10, 12), (13, 14)), center, "clip", 1.0)
    assert found == pytest.approx([10 + 2.2 / 3, 10 + 3.6 / 3])


def test_weights_count_in_both() -> None:
    weighted = slots((0, 0), (1, 1), (2, 2), (9, 9), weights=[5, 1, 3, 7])
    # Of each coordinate 0 and 9 are left out: (1 + 3 * 2) / 4.
    assert robust_mean(weighted, ZERO, "trim", 0.25) == pytest.approx([1.75, 1.75])
    # The norms are 0, 1, 2, 9 (times √2); the median is 1.5: (1 + 1.5 * 3 + 1.5 * 7) / 16.
    assert robust_mean(weighted, ZERO, "clip", 1.0) == pytest.approx([1.0, 1.0])


def test_statistics_are_clipped_by_a_median_of_their_own() -> None:
    made = [np.array(row, np.float32) for row in ((1, 100), (1, 100), (1, 900))]
    own = [Slot(Update(i, 0, v, 1, statistics_size=1), 1.0) for i, v in enumerate(made)]
    assert robust_mean(own, ZERO, "clip", 1.0) == pytest.approx([1, 100])


def test_at_least_one_value_is_left_out_on_each_side_if_three_are_there() -> None:
    assert robust_mean(slots((1, 1), (2, 2), (99, -99)), ZERO, "trim", 0.1) == pytest.approx([2, 1])
    assert robust_mean(slots((1, 1), (3, 5)), ZERO, "trim", 0.1) == pytest.approx([2, 3])
    assert robust_mean(slots((1, 1)), ZERO, "trim", 0.1) == pytest.approx([1, 1])


NUMBERS = st.floats(-100, 100, width=32)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=7)


@given(ROWS, st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)))
def test_one_update_cannot_leave_what_the_others_span(
    rows: list[tuple[float, float]], bad: tuple[float, float]
) -> None:
    honest: Vector = np.array(rows, np.float32)
    trimmed = robust_mean(slots(*rows, bad), ZERO, "trim", 0.1)
    assert (trimmed >= honest.min(0) - 1e-3).all() and (trimmed <= honest.max(0) + 1e-3).all()
    clipped = robust_mean(slots(*rows, bad), ZERO, "clip", 1.0)
    largest = float(np.linalg.norm(honest.astype(float), axis=1).max())
    assert np.linalg.norm(clipped.astype(float)) <= largest * (1 + 1e-5) + 1e-6


@given(ROWS)
def test_a_generous_bound_gives_the_plain_mean_and_the_order_does_not_matter(
    rows: list[tuple[float, float]],
) -> None:
    center = np.array([500, 500], np.float32)  # so that no update is at the current model
    found = robust_mean(slots(*rows), center, "clip", 1e9)
    assert found == pytest.approx(np.mean(np.array(rows), 0), abs=1e-3)
    rules: list[Robust] = ["clip", "trim"]
    for rule in rules:
        one, other = (robust_mean(slots(*own), ZERO, rule, None) for own in (rows, rows[::-1]))
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("robust", "at", "words"),
    [
        ("median", None, "robust = 'median' must be 'clip' or 'trim'"),
        ("clip", 0.0, "robust_at = 0.0 must be a positive number"),
        ("trim", 0.5, "below 0.5"),
        (None, 1.0, "robust_at = 1.0 goes with robust = 'clip' or 'trim'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(robust: Robust, at: float | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        FedAvg(robust=robust, robust_at=at)
