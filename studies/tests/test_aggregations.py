from __future__ import annotations

import math
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraw.auditing.presence import Groups, arrival_shares
from fedraw.core.randomness import Streams
from fedraw.core.types import Floats
from fedraw.errors import BadInput
from fedraw.simulation.speeds import mean_seconds
from fedraw_studies.theory.aggregations import events_to_fill, expected_aggregations


def filled_by_hand(p: list[float], size: int) -> float:
    """The chain of sets of clients that have come: from each, the next new client is drawn."""

    @cache
    def more(come: frozenset[int]) -> float:
        if len(come) == size:
            return 0.0
        new = [i for i in range(len(p)) if i not in come]
        return (1 + sum(p[i] * more(come | {i}) for i in new)) / sum(p[i] for i in new)

    return more(frozenset())


def aggregations_by_hand(p: list[float], size: int, events: int) -> float:
    """Σ_n P(at least K distinct in n), by inclusion and exclusion over the clients that came."""
    total = 0.0
    for n in range(1, events + 1):
        for seen in range(size):  # P(exactly these `seen` clients came), summed
            for held in combinations(p, seen):
                total -= sum(
                    (-1) ** (seen - inner)
                    * math.fsum(sum(only) ** n for only in combinations(held, inner))
                    for inner in range(seen + 1)
                )
        total += 1
    return total


SHARES = st.lists(st.floats(-6, 0), min_size=1, max_size=7).map(
    lambda logs: arrival_shares(10.0 ** -np.array(logs))
)


@given(SHARES, st.data())
@settings(deadline=None, max_examples=60)
def test_filling_against_a_markov_chain(p: Floats, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, p.size))
    exact = filled_by_hand(p.tolist(), size)
    assert events_to_fill(p, size) == pytest.approx(exact, rel=1e-7)


def test_the_collector_of_all_coupons() -> None:
    for clients in (1, 2, 10, 50):
        harmonic = sum(1 / k for k in range(1, clients + 1))
        filled = events_to_fill(np.full(clients, 1 / clients), clients)
        assert filled == pytest.approx(clients * harmonic, rel=1e-8)


@pytest.mark.parametrize(("clients", "size"), [(100, 90), (400, 200)])
def test_equal_clients_have_a_sum(clients: int, size: int) -> None:
    exact = sum(clients / (clients - k) for k in range(size))
    assert events_to_fill(np.full(clients, 1 / clients), size) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("seconds", [[1, 1, 1], [1, 2, 3, 4, 5], [1, 1, 10, 30, 100, 300]])
@pytest.mark.parametrize("events", [1, 3, 6, 12, 40, 200])
def test_a_run_that_may_end_before_the_buffer_is_full(seconds: list[float], events: int) -> None:
    p = arrival_shares(seconds)
    for size in range(1, p.size + 1):
        exact = aggregations_by_hand(p.tolist(), size, events)
        found = expected_aggregations(p, events, size, "dedup")
        assert found == pytest.approx(exact, abs=0.05)
        assert 0 <= found <= max(0, events - size + 1) + 1e-9


def equal_by_hand(clients: int, size: int, events: int) -> float:
    """Of equal clients the number seen is a Markov chain."""
    seen, total = np.zeros(size + 1), 0.0
    seen[0] = 1.0
    old = np.arange(size) / clients
    for _ in range(events):
        left = seen[:-1] * (1 - old)
        seen[:-1] *= old
        seen[1:] += left
        total += float(seen[-1])
    return total


@pytest.mark.parametrize(
    ("clients", "size"), [(30, 10), (400, 10), (1000, 30), (200, 100), (100, 90), (50, 50)]
)
def test_runs_about_as_long_as_it_takes_to_fill(clients: int, size: int) -> None:
    p = np.full(clients, 1 / clients)
    filled = events_to_fill(p, size)
    for part in (0.7, 0.9, 1.0, 1.05, 1.2, 1.5):
        events = round(part * filled)
        exact = equal_by_hand(clients, size, events)
        found = expected_aggregations(p, events, size, "dedup")
        assert found == pytest.approx(exact, abs=0.2)


def test_long_runs_lose_what_it_takes_to_fill() -> None:
    p = arrival_shares([1, 2, 3, 4, 5])
    expected = 5000 - filled_by_hand(p.tolist(), 4) + 1
    assert expected_aggregations(p, 5000, 4, "dedup") == pytest.approx(expected, rel=1e-9)


def test_five_thousand_events_of_the_paper() -> None:
    found = [
        expected_aggregations(
            arrival_shares(
                mean_seconds("correlated", 30, range(6), Streams(seed).generator("speeds"))
            ),
            5000,
            10,
            "dedup",
        )
        for seed in range(30)
    ]
    assert np.mean(found) == pytest.approx(4988.9, abs=2.0 * 3 / math.sqrt(30))


def test_windows_and_blocks_are_counted() -> None:
    p = np.full(4, 0.25)
    assert expected_aggregations(p, 5000, 10, "window") == 4991
    assert expected_aggregations(p, 5009, 10, "blocks") == 500
    assert expected_aggregations(p, 9, 10, "window") == 0
    assert expected_aggregations(p, 0, 1, "blocks") == 0


def test_equal_clients_may_be_given_together() -> None:
    p, many = np.array([0.06, 0.01]), np.array([10, 40])
    apart = np.repeat(p, many)
    assert events_to_fill(p, 45, many) == pytest.approx(events_to_fill(apart, 45), rel=1e-8)
    pooled = expected_aggregations(p, 60, 30, "dedup", many)
    assert pooled == pytest.approx(expected_aggregations(apart, 60, 30, "dedup"), rel=1e-7)


def test_shares_six_orders_of_magnitude_apart() -> None:
    p = arrival_shares([1.0, 1.0, 1e6])
    # Both fast ones come at once; the slow one takes 1/p events, exponential against the run.
    slow = 1 / p[2]
    assert events_to_fill(p, 3) == pytest.approx(slow, rel=1e-5)
    found = expected_aggregations(p, 10_000, 3, "dedup")
    expected = 10_000 + slow * math.expm1(-10_000 / slow)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_million_clients() -> None:
    seconds = np.random.default_rng(0).uniform(0.5, 3, 10**6)
    groups = Groups.of(1 / seconds, np.ones(seconds.size), np.zeros(seconds.size, bool))
    # Among K arrivals of very many clients a pair repeats with the chance K (K − 1)/2 · Σ p².
    filled = events_to_fill(groups.shares, 10, groups.many)
    repeats = 45 * float((arrival_shares(seconds) ** 2).sum())
    assert filled - 10 == pytest.approx(repeats, rel=0.01)


def test_what_makes_no_sense_is_refused() -> None:
    p = np.full(3, 1 / 3)
    with pytest.raises(BadInput, match="never fills"):
        events_to_fill(p, 4)
    with pytest.raises(BadInput, match="never fills"):
        expected_aggregations(p, 2, 4, "dedup")
    with pytest.raises(BadInput, match="at least 0 events"):
        expected_aggregations(p, -1, 1, "window")
