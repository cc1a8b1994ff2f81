from __future__ import annotations

from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraw.core.weighting import Cap
from fedraw.errors import BadInput
from fedraw_studies.theory.bound import largest_rho, rho_of

SCORES = st.lists(st.floats(0.01, 10), min_size=1, max_size=8)
CAPS = st.sampled_from(["naive", "water-filling"])


@pytest.mark.parametrize(
    ("rare", "expected"), [(0.1647, [1.31, 1.40, 1.39, 1.34]), (0.346, [2.25, 2.18, 1.96, 1.74])]
)
def test_one_to_four_rare_clients_of_the_paper(rare: float, expected: list[float]) -> None:
    found = [rho_of([rare] * present + [0.05] * (10 - present)) for present in range(1, 5)]
    assert found == pytest.approx(expected, abs=0.006)


def test_the_worst_buffer_of_the_paper() -> None:
    emnist = largest_rho(np.array([0.1647] * 6 + [0.05] * 24), 10)
    assert emnist.buffer == (0.1647,) * 2 + (0.05,) * 8
    assert emnist.exact
    cifar = largest_rho(np.array([0.346] * 4 + [0.05] * 26), 10)
    assert cifar.buffer.count(0.346) == 1
    assert cifar.reached == pytest.approx(2.245, abs=1e-3)


@given(SCORES, st.data())
@settings(deadline=None)
def test_without_a_cap_no_buffer_exceeds_it(scores: list[float], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(scores)))
    found = largest_rho(np.array(scores), size)
    assert found.exact
    best = max(rho_of(held) for held in combinations(scores, size))
    assert found.reached == pytest.approx(best)
    assert rho_of(found.buffer) == pytest.approx(best)
    assert 1 - 1e-9 <= best <= size


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=4), st.integers(1, 6))
@settings(deadline=None)
def test_without_deduplication_a_client_fills_several_slots(scores: list[float], size: int) -> None:
    found = largest_rho(np.array(scores), size, "window")
    best = max(rho_of(held) for held in combinations_with_replacement(scores, size))
    assert found.reached == pytest.approx(best)
    low, high = min(scores), max(scores)
    assert found.reached <= (high + low) ** 2 / (4 * high * low) * (1 + 1e-9)


@given(SCORES, CAPS, st.floats(0, 1), st.booleans(), st.data())
@settings(deadline=None)
def test_with_a_cap_the_bound_holds(
    scores: list[float], cap: Cap, part: float, few: bool, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(scores)))
    cap_at = max(1 / size, part)
    found = largest_rho(np.array(scores), size, "dedup", cap, cap_at, tried=1000 if few else 0)
    best = max(rho_of(held, cap, cap_at) for held in combinations(scores, size))
    assert found.reached <= best * (1 + 1e-9)
    assert best <= found.at_most * (1 + 1e-9)
    assert rho_of(found.buffer, cap, cap_at) == pytest.approx(found.reached)
    assert found.exact or not few


def test_with_a_cap_the_worst_buffer_may_skip_a_score() -> None:
    scores = np.array([8.0, 7.2, 7.0, 1.0, 1.0])
    found = largest_rho(scores, 3, "dedup", "water-filling", 0.5)
    # 8 weighs 0.5 beside 7 and 1: 3 (64 + 49 + 1)/256. Beside 7.2 and 1 it weighs a little less.
    assert found.buffer == (8.0, 7.0, 1.0)
    assert found.reached == pytest.approx(3 * 114 / 256)
    assert rho_of([8, 7.2, 1], "water-filling", 0.5) < found.reached


def test_too_many_different_scores_leave_a_bracket() -> None:
    scores = np.random.default_rng(0).uniform(0.05, 0.5, 1000)
    found = largest_rho(scores, 10, "dedup", "water-filling", 0.15)
    assert 1 < found.reached < found.at_most <= 10 * (6 * 0.15**2 + 0.1**2)


def test_a_cap_that_never_binds_leaves_it_exact() -> None:
    scores = np.array([0.1647] * 6 + [0.05] * 24)
    capped = largest_rho(scores, 10, "dedup", "water-filling", 0.3)
    assert capped.exact
    assert capped == largest_rho(scores, 10)


def test_a_liar_under_water_filling() -> None:
    scores = np.array([0.5] + [0.05] * 29)
    assert largest_rho(scores, 10).reached == pytest.approx(10 * 109 / 19**2)
    capped = largest_rho(scores, 10, "dedup", "water-filling", 0.3)
    assert capped.reached == pytest.approx(10 * (0.09 + 0.49 / 9))
    assert capped.exact


def test_equal_scores_are_uniform() -> None:
    assert largest_rho(np.full(12, 0.05), 10).reached == pytest.approx(1)


def test_a_million_scores() -> None:
    scores = np.random.default_rng(0).uniform(0.05, 0.5, 10**6)
    few = largest_rho(scores, 10)
    assert few.reached == pytest.approx(
        largest_rho(np.array([scores.min(), scores.max()]), 10, "window").reached, rel=1e-3
    )


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadInput, match="positive"):
        largest_rho(np.array([0.1, 0.0]), 2)
    with pytest.raises(BadInput, match="never fills"):
        largest_rho(np.array([0.1, 0.2]), 3)
    with pytest.raises(BadInput, match="cannot sum to 1"):
        largest_rho(np.ones(5), 4, "dedup", "water-filling", 0.2)
