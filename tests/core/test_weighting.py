from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.weighting import Cap, Staleness, staleness_discount, weights, weights_of_rows
from fedraw.errors import BadInput

COMMON, RARE, LIAR = 0.05, 0.16475, 0.5
ONE_LIAR = [LIAR] + [COMMON] * 9
TWO_LIARS = [LIAR] * 2 + [COMMON] * 8
LIAR_AMONG_RARE = [LIAR] + [RARE] * 4 + [COMMON] * 5
ONE_RARE = [RARE] + [COMMON] * 9


@pytest.mark.parametrize(
    ("scores", "cap", "expected"),
    [
        (ONE_LIAR, "none", [0.5263] + [0.0526] * 9),
        (ONE_LIAR, "naive", [0.3878] + [0.0680] * 9),
        (ONE_LIAR, "water-filling", [0.3] + [0.0778] * 9),
        (TWO_LIARS, "none", [0.3571] * 2 + [0.0357] * 8),
        (TWO_LIARS, "naive", [0.3387] * 2 + [0.0403] * 8),
        (TWO_LIARS, "water-filling", [0.3] * 2 + [0.05] * 8),
        (LIAR_AMONG_RARE, "none", [0.3549] + [0.1169] * 4 + [0.0355] * 5),
        (LIAR_AMONG_RARE, "naive", [0.3174] + [0.1237] * 4 + [0.0376] * 5),
        (LIAR_AMONG_RARE, "water-filling", [0.3] + [0.1269] * 4 + [0.0385] * 5),
        (ONE_RARE, "none", [0.268] + [0.0813] * 9),
        (ONE_RARE, "naive", [0.268] + [0.0813] * 9),
        (ONE_RARE, "water-filling", [0.268] + [0.0813] * 9),
    ],
)
def test_a_cap_of_three_tenths_by_hand(
    scores: list[float], cap: Cap, expected: list[float]
) -> None:
    assert weights(scores, cap, 0.3) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("score", "rho"),
    [(RARE, [1.31, 1.40, 1.39, 1.34]), (0.346, [2.25, 2.18, 1.96, 1.74])],
)
def test_non_uniformity_with_one_to_four_rare_clients(score: float, rho: list[float]) -> None:
    slots = [[score] * rare + [COMMON] * (10 - rare) for rare in range(1, 5)]
    assert [10 * np.square(weights(s)).sum() for s in slots] == pytest.approx(rho, abs=0.011)


def test_a_naive_cap_may_end_above_itself_and_water_filling_never() -> None:
    assert weights([8, 1, 1], "naive", 0.5)[0] == pytest.approx(0.5 / 0.7)
    assert weights([8, 1, 1], "water-filling", 0.5).tolist() == [0.5, 0.25, 0.25]


def test_pinning_one_may_push_the_next_above_the_cap() -> None:
    # 0.6, 0.3, 0.1: pinned at 0.45, the rest share 0.55 as 3 : 1, so the second is pinned too.
    expected = [0.45, 0.4125, 0.1375]
    assert weights([6, 3, 1], "water-filling", 0.45) == pytest.approx(expected)
    assert weights([6, 3, 1], "water-filling", 0.4) == pytest.approx([0.4, 0.4, 0.2])


@pytest.mark.parametrize("slots", [1, 3, 7, 10, 49, 98, 103])
@pytest.mark.parametrize("cap", ["naive", "water-filling"])
def test_the_lowest_possible_cap_is_met_by_equal_weights(slots: int, cap: Cap) -> None:
    scores = [1 + 10.0 * i for i in range(slots)]
    if cap == "water-filling":
        assert weights(scores, cap, 1 / slots) == pytest.approx([1 / slots] * slots)
    assert weights([2.0] * slots, cap, 1 / slots) == pytest.approx([1 / slots] * slots)


def pin_and_redistribute(scores: list[float], cap_at: float) -> list[float]:
    """Pin whoever exceeds the cap, share the rest by score, until nobody does."""
    pinned: set[int] = set()
    while True:
        free = [i for i in range(len(scores)) if i not in pinned]
        room, total = 1 - cap_at * len(pinned), sum(scores[i] for i in free)
        share = {i: room * scores[i] / total for i in free}
        over = {i for i in free if share[i] > cap_at * (1 + 1e-12)}
        if not over:
            return [cap_at if i in pinned else share[i] for i in range(len(scores))]
        pinned |= over


some_scores = st.lists(st.floats(1e-4, 1), min_size=1, max_size=15)


@given(some_scores, st.floats(0, 1))
def test_water_filling_is_pinning_and_redistributing(scores: list[float], above: float) -> None:
    cap_at = (1 + 1e-9) / len(scores) * (1 - above) + above
    expected = pin_and_redistribute(scores, min(cap_at, 1.0))
    found = weights(scores, "water-filling", min(cap_at, 1.0))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(some_scores, st.sampled_from(["none", "naive", "water-filling"]), st.floats(0, 1))
def test_weights_sum_to_one_and_keep_the_order_of_the_scores(
    scores: list[float], cap: Cap, above: float
) -> None:
    cap_at = 1 / len(scores) * (1 - above) + above
    found = weights(scores, cap, max(cap_at, 1 / len(scores)))
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found > 0).all()
    order = np.argsort(scores, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    if cap == "water-filling":
        assert found.max() <= cap_at * (1 + 1e-9)


# Scores whose ratios go far beyond what a subtraction in float64 survives.
far_apart = st.lists(st.floats(-15, 15).map(lambda power: 10.0**power), min_size=1, max_size=15)


@given(far_apart, st.floats(0, 1))
def test_water_filling_keeps_its_cap_whatever_the_ratio_of_the_scores(
    scores: list[float], above: float
) -> None:
    cap_at = min(1.0, (1 + 1e-9) / len(scores) * (1 - above) + above)
    found = weights(scores, "water-filling", cap_at)
    assert found.max() <= cap_at * (1 + 1e-9)
    assert found == pytest.approx(pin_and_redistribute(scores, cap_at), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("cap", ["none", "naive", "water-filling"])
def test_weights_of_rows_are_those_of_each_row(cap: Cap) -> None:
    rows = [[8.0, 1.0, 1.0], [1.0, 1.0, 1.0], [4.0, 4.0, 0.5]]
    found = weights_of_rows(np.array(rows), cap, 0.4)
    assert found == pytest.approx(np.array([weights(row, cap, 0.4) for row in rows]))


def test_a_tiny_score_beside_two_huge_ones_by_hand() -> None:
    # Two are pinned at 0.4; the others share 0.2 in proportion to their scores, 1 : 3.
    found = weights([1.0, 1e17, 3.0, 1e17], "water-filling", 0.4)
    assert found == pytest.approx([0.05, 0.4, 0.15, 0.4])


@given(some_scores)
def test_a_cap_nobody_reaches_changes_nothing(scores: list[float]) -> None:
    plain = weights(scores)
    for cap in ("naive", "water-filling"):
        assert weights(scores, cap, 1.0).tolist() == plain.tolist()


@pytest.mark.parametrize(
    ("cap", "cap_at", "words"),
    [
        ("naive", 0.09, r"cap_at = 0.09 is below 1/10.*cannot sum to 1; raise it to 0.1 or more"),
        ("water-filling", 0.0999, "is below 1/10"),
        ("water-filling", 0, "cap_at = 0 is not a weight"),
        ("naive", 1.5, "cap_at = 1.5 is not a weight"),
        ("naive", np.nan, "cap_at = nan is not a weight"),
        ("soft", 0.3, "cap 'soft' is unknown; known: none, naive, water-filling"),
    ],
)
def test_a_cap_that_cannot_be_met_is_refused(cap: Cap, cap_at: float, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        weights(ONE_LIAR, cap, cap_at)


@pytest.mark.parametrize("scores", [[], [0.0], [0.5, -0.1], [0.5, np.nan], [np.inf, 1.0]])
def test_scores_must_be_positive_numbers(scores: list[float]) -> None:
    with pytest.raises(BadInput, match="scores must be positive"):
        weights(scores)


@pytest.mark.parametrize(
    ("kind", "versions", "discount"),
    [
        ("none", 100, 1),
        ("polynomial", 0, 1),
        ("polynomial", 3, 1 / 2),
        ("polynomial", 99, 1 / 10),
        ("hinge", 0, 1),
        ("hinge", 4, 1),
        ("hinge", 5, 1 / 11),
        ("hinge", 14, 1 / 101),
    ],
)
def test_what_staleness_takes_off(kind: Staleness, versions: int, discount: float) -> None:
    assert staleness_discount(kind, versions) == pytest.approx(discount)


def test_the_shape_of_a_discount_can_be_chosen() -> None:
    assert staleness_discount("polynomial", 3, exponent=1) == 1 / 4
    assert staleness_discount("polynomial", 3, exponent=0) == 1
    assert staleness_discount("hinge", 3, slope=1, grace=2) == 1 / 2
