"""The fastest client claims a rare label that it does not have; nobody learns."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.simulation.scenes import correlated, steps, with_rare

from fedraw.core.randomness import Streams
from fedraw.simulation.perturbations.attacks import misreport
from fedraw.simulation.speeds import mean_seconds
from fedraw.strategies.fedraw import FedRAW

NAIVE = FedRAW(cap="naive", cap_at=0.3)
WATER_FILLING = FedRAW(cap="water-filling", cap_at=0.3)


@cache
def attacked(strategy: FedRAW, seeds: int) -> tuple[list[list[float]], float, float]:
    """The liar's weights seed by seed, and how often it and a rare client weigh the most."""
    weights, liar_first, rare_first, aggregations = list[list[float]](), 0, 0, 0
    for seed in range(seeds):
        mean = mean_seconds("correlated", 30, range(6), Streams(seed).generator("speeds"))
        liar = int(np.argmin(mean))
        table = misreport(with_rare(30, 6), liar, "rare 0", 0.9)
        own = []
        for step in steps(correlated(strategy, seed, table=table), 5000):
            if step.aggregated:
                clients, shares = step.contents
                first = int(clients[int(np.argmax(shares))])
                aggregations += 1
                liar_first += first == liar
                rare_first += first < 6
                if liar in clients:
                    own.append(shares[list(clients).index(liar)])
        weights.append(own)
    return weights, liar_first / aggregations, rare_first / aggregations


@pytest.mark.parametrize(
    ("strategy", "seeds", "least", "mean", "most"),
    [
        (FedRAW(), 10, 0.355, 0.469, 0.526),
        (NAIVE, 4, 0.317, 0.362, 0.388),
        (WATER_FILLING, 4, 0.3, 0.3, 0.3),
    ],
)
def test_what_a_false_claim_weighs(
    strategy: FedRAW, seeds: int, least: float, mean: float, most: float
) -> None:
    weights, _, _ = attacked(strategy, seeds)
    # Over seeds the least weight varies by 0.012, the mean by 0.005 and the largest not at all.
    assert np.mean([min(own) for own in weights]) == pytest.approx(least, abs=0.015)
    assert np.mean([np.mean(own) for own in weights]) == pytest.approx(mean, abs=0.005)
    assert {round(max(own), 3) for own in weights} == {most}


def test_who_weighs_the_most() -> None:
    _, liar, rare = attacked(FedRAW(), 10)
    # Over seeds they vary by 0.025 and 0.021.
    assert liar == pytest.approx(0.51, abs=0.025)
    assert rare == pytest.approx(0.385, abs=0.021)


def test_without_an_attack_a_cap_of_three_tenths_never_binds() -> None:
    plain, capped = (steps(correlated(s, 0), 2000) for s in (FedRAW(), WATER_FILLING))
    assert plain == capped
    largest = max(max(step.contents.weights) for step in plain if step.aggregated)
    assert largest == pytest.approx(0.268, abs=1e-3)
