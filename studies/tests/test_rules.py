"""Verdicts on numbers small enough to check by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw_studies.rules import (
    Judged,
    MeanInterval,
    Verdict,
    below,
    comparable,
    greater,
    inside,
    ordered,
    rank_correlation,
    together,
    wider,
)

HOLDS, PARTLY, FAILS = Verdict.HOLDS, Verdict.PARTLY, Verdict.FAILS
NOT_COMPARABLE, NOT_RUN = Verdict.NOT_COMPARABLE, Verdict.NOT_RUN
numbers = st.floats(-100, 100)
some = st.lists(numbers, min_size=1, max_size=6)


# From any printed table of Student's t, 95 % two-sided.
def test_the_interval_of_five_seeds() -> None:
    # Mean 3, sample sd sqrt(2.5), standard error sqrt(0.5): 3 ± 2.7764 · 0.70711.
    assert MeanInterval.of([1, 2, 3, 4, 5]) == pytest.approx((3, 1.03676, 4.96324), abs=1e-4)
    assert MeanInterval.of([7.0]) == (7.0, -inf, inf)


@pytest.mark.parametrize(
    ("differences", "judged"),
    [
        ([1, 2, 3, 4, 5], Judged(HOLDS)),  # the interval above
        ([1, 2, 3], Judged(PARTLY, "within chance")),  # 2 ± 4.3 · 0.577
        ([5, 5, 5], Judged(HOLDS)),
        ([-1, -2, 2], Judged(FAILS)),
        ([0, 0, 0], Judged(FAILS)),
        ([9], Judged(PARTLY, "one seed")),
        ([9, 9], Judged(PARTLY, "2 seeds")),
        ([-9], Judged(FAILS)),
    ],
)
def test_greater(differences: list[float], judged: Judged) -> None:
    assert greater(differences) == judged


def test_without_chance_the_sign_decides() -> None:
    assert greater([1.0], exact=True).verdict is HOLDS
    assert greater([0.0], exact=True).verdict is FAILS
    assert comparable([0.4], 0.5, exact=True).verdict is HOLDS


def test_comparable_needs_the_whole_interval_inside_the_margin() -> None:
    assert comparable([0.9, 1.0, 1.1], 3.0).verdict is HOLDS
    assert comparable([-0.9, -1.0, -1.1], 3.0).verdict is HOLDS
    assert comparable([-2, 0, 2], 3.0) == Judged(PARTLY, "within chance")  # ± 4.97
    assert comparable([-4, -4, -4], 3.0).verdict is FAILS
    assert comparable([1.0], 3.0) == Judged(PARTLY, "one seed")


def test_below() -> None:
    assert below([0.0, 1.0, 2.0], 5.0).verdict is HOLDS  # 1 ± 2.48
    assert below([0.0, 1.0, 2.0], 3.0).verdict is PARTLY
    assert below([0.0], 5.0) == Judged(PARTLY, "one seed")
    assert below([9.0], 5.0).verdict is FAILS


def test_wider_is_the_two_sided_f_test() -> None:
    # Three seeds: F must exceed 39.0, a ratio of standard deviations of 6.245.
    assert wider([-6.2, 0, 6.2], [-1, 0, 1]) == Judged(PARTLY, "within chance")
    assert wider([-6.3, 0, 6.3], [-1, 0, 1]).verdict is HOLDS
    assert wider([0, 1, 2], [0, 5, 9]).verdict is FAILS
    assert wider([0, 1, 2], [3, 3, 3]).verdict is HOLDS
    assert wider([3, 3, 3], [3, 3, 3]).verdict is FAILS
    assert wider([0, 9], [0, 1]) == Judged(PARTLY, "2 seeds")
    assert wider([3], [4]) == Judged(NOT_COMPARABLE, "one seed has no spread")


def test_ordered_counts_the_orders_that_would_do_as_well() -> None:
    assert ordered([1, 2, 3, 4, 5, 6]).verdict is HOLDS  # 2 of 720
    assert ordered([45, 77, 90, 99, 100, 100]).verdict is HOLDS
    # Of three values the best order comes up once in three, either way round.
    assert ordered([1, 2, 3]) == Judged(PARTLY, "rank correlation 1.00, within chance")
    assert ordered([3, 2, 1]).verdict is FAILS
    assert ordered([5, 5, 5]).verdict is FAILS
    # The paper's own figures: FedFa over K, falling, and FedRAW over the holders of a label.
    falling = ordered([-20.92, -20.75, -16.25, -14.08, -17.33, -13.92])
    assert falling == Judged(PARTLY, "rank correlation 0.83, within chance")
    rising = ordered([18.25, 24.67, 22.83, 37.50, 48.92, 52.75])
    assert rising == Judged(HOLDS, "rank correlation 0.94")


def test_ranks_are_shared_by_equal_values() -> None:
    # Ranks 0, 1.5, 1.5 against 0, 1, 2: 1.5 / sqrt(1.5 · 2).
    assert rank_correlation([1, 4, 4]) == pytest.approx(0.8660, abs=1e-4)


def test_figures_inside() -> None:
    def some(count: int, of: int) -> list[bool]:
        return [True] * count + [False] * (of - count)

    assert inside(some(67, 67), some(51, 51)).verdict is HOLDS
    assert inside(some(34, 67), some(34, 67)).verdict is PARTLY
    assert inside(some(33, 67), some(33, 67)).verdict is FAILS
    # Distinct ones decide, and all are told.
    both = inside(some(65, 67), some(1, 3))
    assert both == Judged(FAILS, "65 of 67 figures inside (1 of 3 distinct ones)")


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, PARTLY], PARTLY),
        ([HOLDS, FAILS], PARTLY),
        ([FAILS, FAILS], FAILS),
        ([FAILS, PARTLY], PARTLY),
        ([HOLDS, NOT_COMPARABLE], HOLDS),
        ([NOT_COMPARABLE], NOT_COMPARABLE),
        ([HOLDS, NOT_RUN], NOT_RUN),
        ([], NOT_COMPARABLE),
    ],
)
def test_a_claim_of_several_parts(parts: list[Verdict], whole: Verdict) -> None:
    assert together(parts) is whole


@given(some)
def test_a_claim_and_its_contrary_never_both_hold(differences: list[float]) -> None:
    pair = {greater(differences).verdict, greater([-d for d in differences]).verdict}
    assert FAILS in pair


@given(some, st.floats(0.1, 50))
def test_what_is_well_below_zero_is_not_comparable(values: list[float], margin: float) -> None:
    shifted = [value - 1000 for value in values]
    assert comparable(shifted, margin).verdict is FAILS


@given(st.lists(numbers, min_size=2, max_size=6, unique=True))
def test_rank_correlation_looks_at_the_order_alone(values: list[float]) -> None:
    assert rank_correlation(sorted(values)) == pytest.approx(1)
    assert rank_correlation(sorted(values, reverse=True)) == pytest.approx(-1)
    ranks = [sorted(values).index(value) for value in values]
    assert rank_correlation(values) == pytest.approx(rank_correlation(ranks))
