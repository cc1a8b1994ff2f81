from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privacy.laws import answers, band, strays

from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy
from fedraw.privacy.summaries import (
    estimated_coverage,
    simulated_sums,
    truth_probability,
    unbiased_coverage,
)

LABELS = 3
SETS = list(product([False, True], repeat=LABELS))
budgets = st.floats(0.05, 8)


def probability(sent: tuple[bool, ...], held: tuple[bool, ...], epsilon_per_bit: float) -> float:
    p = truth_probability(epsilon_per_bit)
    return math.prod(p if s == h else 1 - p for s, h in zip(sent, held, strict=True))


def worst_loss(privacy: Privacy, most_apart: int) -> float:
    """The log of the largest likelihood ratio over all answers and label sets this far apart."""
    epsilon = privacy.epsilon_per_bit(LABELS)
    return max(
        math.log(probability(sent, one, epsilon) / probability(sent, other, epsilon))
        for sent, one, other in product(SETS, SETS, SETS)
        if sum(a != b for a, b in zip(one, other, strict=True)) <= most_apart
    )


@given(budgets)
def test_any_two_label_sets_are_epsilon_apart_in_the_unit_client(epsilon: float) -> None:
    privacy = Privacy("randomised-response", epsilon, "client")
    assert worst_loss(privacy, LABELS) == pytest.approx(epsilon, rel=1e-9)


@given(budgets)
def test_label_sets_that_differ_in_one_label_are_epsilon_apart(epsilon: float) -> None:
    privacy = Privacy("randomised-response", epsilon, "label")
    assert worst_loss(privacy, 1) == pytest.approx(epsilon, rel=1e-9)
    assert worst_loss(privacy, LABELS) == pytest.approx(LABELS * epsilon, rel=1e-9)


@given(st.integers(1, 12), st.integers(0, 12), budgets)
def test_the_estimate_is_unbiased_with_the_stated_variance(
    clients: int, holders: int, epsilon: float
) -> None:
    holders = min(holders, clients)
    law = answers(holders, clients, epsilon)
    estimates = unbiased_coverage(np.arange(clients + 1), clients, epsilon)
    mean = law @ estimates
    sd = math.sqrt(clients) / (2 * math.sinh(epsilon / 2))
    assert mean == pytest.approx(holders, abs=1e-9 * max(1, clients / epsilon))
    assert law @ (estimates - mean) ** 2 == pytest.approx(sd**2, rel=1e-8)


def test_simulated_estimates_average_to_the_true_coverage() -> None:
    # Hoeffding, for a mean of 20,000 estimates made of 30 independent bits each, of which one moves
    # an estimate by 1 / (2p − 1): a label strays further in less than one of 10^9 seeds.
    coverage, clients, epsilon, runs = np.array([2, 20, 30]), 30, 1.0, 20_000
    rng = np.random.default_rng(7)
    sums = np.array([simulated_sums(coverage, clients, epsilon, rng) for _ in range(runs)])
    width = math.sqrt(clients) / (2 * truth_probability(epsilon) - 1)
    found = unbiased_coverage(sums, clients, epsilon).mean(axis=0)
    assert np.abs(found - coverage).max() < width * band(runs)
    assert width * band(runs) < 0.3


def test_simulated_sums_have_the_distribution_of_the_clients_bits() -> None:
    rng, runs = np.random.default_rng(3), 5000
    many = np.full(runs, 2)
    sums = simulated_sums(many, 5, 1.0, rng)
    law = np.cumsum(answers(2, 5, 1.0))
    assert strays(sums.astype(float), np.arange(6.0), law) < band(runs)


def test_the_estimate_by_hand() -> None:
    # ε = ln 3: p = 3/4. Of 8 clients 4 hold the label: 3 + 1 yeses expected, and 4 come back.
    assert unbiased_coverage([4, 2, 0, 8], 8, math.log(3)) == pytest.approx([4, 0, -4, 12])
    assert estimated_coverage([4, 2, 0, 8], 8, math.log(3)) == pytest.approx([4, 1, 1, 8])


@pytest.mark.parametrize("sums", [[-1, 3], [3, 9]])
def test_impossible_sums_are_refused(sums: list[int]) -> None:
    with pytest.raises(BadInput, match="must be from 0 to 8"):
        estimated_coverage(sums, 8, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-7, 21.0])
def test_every_function_refuses_an_invalid_budget(epsilon: float) -> None:
    for use in (
        lambda: truth_probability(epsilon),
        lambda: estimated_coverage([1], 2, epsilon),
    ):
        with pytest.raises(BadInput, match="must be a number from 1e-06 to 20"):
            use()
