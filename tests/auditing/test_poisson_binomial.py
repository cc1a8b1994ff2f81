from __future__ import annotations

from itertools import product
from math import comb, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM

from fedraw.auditing.presence import binomial_pmfs, convolve, poisson_binomial

CHANCES = st.lists(st.floats(0, 1), max_size=8)


def all_outcomes(q: list[float], top: int) -> list[float]:
    law = [0.0] * (top + 1)
    for heads in product((False, True), repeat=len(q)):
        if sum(heads) <= top:
            law[sum(heads)] += prod(c if up else 1 - c for c, up in zip(q, heads, strict=True))
    return law


@CALM
@given(CHANCES, st.integers(0, 10))
def test_all_outcomes(q: list[float], top: int) -> None:
    assert poisson_binomial(np.array(q), top) == pytest.approx(
        all_outcomes(q, top), rel=1e-12, abs=1e-15
    )


@CALM
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 4)), max_size=5), st.integers(0, 12))
def test_a_coin_thrown_often_is_as_many_coins(coins: list[tuple[float, int]], top: int) -> None:
    q, many = [c for c, _ in coins], [m for _, m in coins]
    alone = poisson_binomial(np.repeat(np.array(q), np.array(many, np.int64)), top)
    together = poisson_binomial(np.array(q), top, np.array(many, np.int64))
    assert together == pytest.approx(alone, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("q", [1e-12, 0.3, 0.5, 1 - 1e-12])
def test_one_coin_is_binomial(q: float) -> None:
    expected = [comb(5, k) * q**k * (1 - q) ** (5 - k) for k in range(6)]
    assert binomial_pmfs(np.array([q]), 5, np.array([5]))[:, 0] == pytest.approx(
        expected, rel=1e-10
    )


def test_coins_that_always_or_never_fall_heads() -> None:
    each = binomial_pmfs(np.array([0.0, 1.0, 1.0]), 4, np.array([3, 2, 4]))
    assert each.T.tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]


def test_a_coin_that_always_falls_heads_too_often_leaves_nothing_up_to_the_top() -> None:
    assert binomial_pmfs(np.array([1.0]), 2, np.array([3])).ravel().tolist() == [0, 0, 0]


def test_no_coin_at_all() -> None:
    assert poisson_binomial(np.zeros(0), 3).tolist() == [1, 0, 0, 0]
    assert poisson_binomial(np.zeros(0), 0).tolist() == [1]


@CALM
@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_something_always_happens(q: list[float]) -> None:
    law = poisson_binomial(np.array(q), len(q))
    assert law.sum() == pytest.approx(1)
    assert (law >= 0).all()
    assert law @ np.arange(len(q) + 1) == pytest.approx(sum(q), rel=1e-9, abs=1e-12)


def test_a_million_unlikely_coins_are_nearly_poisson() -> None:
    law = poisson_binomial(np.array([2e-6]), 3, np.array([10**6]))
    poisson = np.exp(-2) * np.array([1, 2, 2, 4 / 3])
    assert law == pytest.approx(poisson, rel=1e-5)


def test_large_groups_cut_off_where_they_never_get() -> None:
    q, many = np.array([0.3, 0.02, 1e-5, 0.1]), np.array([900, 2000, 50_000, 700])
    law = poisson_binomial(q, 400, many)
    assert law == pytest.approx(poisson_binomial(np.repeat(q, many), 400), rel=1e-9, abs=1e-30)
    assert law.argmax() == pytest.approx(q @ many, abs=2)


def test_the_sum_of_two_counts() -> None:
    assert convolve(np.array([0.5, 0.5]), np.array([0.25, 0.75]), 1).tolist() == [0.125, 0.5]
