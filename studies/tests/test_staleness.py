from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventlog.logs import arrival, record

from fedraw.auditing.presence import arrival_shares
from fedraw.core.randomness import Streams
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput
from fedraw.eventlog.state import RunState
from fedraw.simulation.speeds import Speeds, mean_seconds
from fedraw_studies.theory.staleness import (
    client_staleness,
    in_versions,
    mean_staleness,
    worst_staleness,
)

RARE = np.arange(30) < 6
EVENTS = 5000


def measured(order: tuple[int, ...], group: set[int]) -> tuple[float, float] | None:
    """What the project's metrics say of one order of arrivals."""
    state, handed = RunState.of([record("start", rare_labels=["owl"])]), dict.fromkeys(range(10), 0)
    for client in group:
        state.apply(record("joined", client=client, counts={"owl": 1}))
    for event, client in enumerate(order, start=1):
        stale, handed[client] = event - handed[client], event
        state.apply(arrival(client=client, staleness_events=stale))
    told = state.participation()
    mean, worst = told["RareMeanStale"], told["RareMaxStale"]
    return None if mean is None or worst is None else (mean, worst)


def by_hand(shares: list[float], group: set[int], events: int) -> tuple[float, float]:
    """Both expectations by going through every order of arrivals."""
    chance, mean, worst = 0.0, 0.0, 0.0
    for order in itertools.product(range(len(shares)), repeat=events):
        told = measured(order, group)
        if told is not None:
            weight = math.prod(shares[client] for client in order)
            chance += weight
            mean += weight * told[0]
            worst += weight * told[1]
    return mean / chance, worst / chance


@pytest.mark.parametrize("events", [1, 2, 5, 8])
@pytest.mark.parametrize("shares", [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
def test_the_mean_is_exact_and_the_worst_of_one_client_too(
    shares: list[float], events: int
) -> None:
    p = np.array(shares)
    pair, one = np.array([True, True, False]), np.array([True, False, False])
    assert mean_staleness(p, pair, events) == pytest.approx(by_hand(shares, {0, 1}, events)[0])
    mean, worst = by_hand(shares, {0}, events)
    assert mean_staleness(p, one, events) == pytest.approx(mean)
    assert worst_staleness(p, one, events) == pytest.approx(worst)


def test_the_worst_of_several_clients_errs_by_the_order_of_their_shares() -> None:
    shares = [0.1, 0.05, 0.85]
    worst = by_hand(shares, {0, 1}, 9)[1]
    group = np.array([True, True, False])
    assert worst_staleness(np.array(shares), group, 9) == pytest.approx(worst, rel=0.03)


def longest_run_recursion(p: float, events: int) -> float:
    """P(no gap longer than g in n events) = that in n − 1, less those whose first ends at n."""
    expected = 0.0
    for gap in range(events):
        ending = p * (1 - p) ** gap
        none = [1.0] * (gap + 1)
        for n in range(gap + 1, events + 1):
            none.append(none[n - 1] - ending * none[n - gap - 1])
        expected += 1 - none[events]
    return expected / (1 - (1 - p) ** events)


@pytest.mark.parametrize(("p", "events"), [(0.3, 200), (0.02, 700), (0.002, 1200)])
def test_the_worst_of_one_client_against_a_recursion(p: float, events: int) -> None:
    one = np.array([True, False])
    found = worst_staleness(np.array([p, 1 - p]), one, events)
    assert found == pytest.approx(longest_run_recursion(p, events), rel=1e-7)


def drawn(kind: Speeds, ratio: float) -> list[Floats]:
    seconds = [
        mean_seconds(kind, 30, range(6), Streams(seed).generator("speeds"), ratio)
        for seed in range(30)
    ]
    return [arrival_shares(s) for s in seconds]


@pytest.mark.parametrize(
    ("kind", "ratio", "mean", "mean_spread", "worst", "worst_spread"),
    [
        ("correlated", 2, 63.6, 5.3, 439, 76),
        ("ratio", 10, 244, 35, 1488, 477),
        ("ratio", 20, 464, 70, 2277, 657),
    ],
)
def test_the_papers_slow_clients(
    kind: Speeds, ratio: float, mean: float, mean_spread: float, worst: float, worst_spread: float
) -> None:
    # The reference is a mean over 30 draws: held to two of its standard errors and ours.
    error = 2 * math.sqrt(2 / 30)
    shares = drawn(kind, ratio)
    means = [mean_staleness(p, RARE, EVENTS) for p in shares]
    worsts = [worst_staleness(p, RARE, EVENTS) for p in shares]
    assert np.mean(means) == pytest.approx(mean, abs=error * mean_spread)
    assert np.mean(worsts) == pytest.approx(worst, abs=error * worst_spread)


def test_a_long_draw_agrees() -> None:
    p, rng = drawn("ratio", 10)[0], np.random.default_rng(7)
    runs = [measured_run(rng.choice(30, EVENTS, p=p)) for _ in range(400)]
    mean, worst = np.mean(runs, axis=0)
    error = 3.5 * np.std(runs, axis=0) / math.sqrt(len(runs))
    assert mean_staleness(p, RARE, EVENTS) == pytest.approx(mean, abs=error[0])
    assert worst_staleness(p, RARE, EVENTS) == pytest.approx(worst, abs=error[1])


def measured_run(order: Ints) -> tuple[float, float]:
    gaps = [np.diff(np.flatnonzero(order == client) + 1, prepend=0) for client in range(6)]
    together = np.concatenate(gaps)
    return float(together.mean()), float(together.max())


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_staleness_lies_within_the_run(rates: list[float], events: int) -> None:
    p = arrival_shares(1 / np.array(rates))
    group = np.arange(p.size) < 1
    mean, worst = mean_staleness(p, group, events), worst_staleness(p, group, events)
    assert 1 - 1e-9 <= mean <= mean_staleness(p, group) * (1 + 1e-9)
    assert mean <= worst * (1 + 1e-6)
    assert worst <= events * (1 + 1e-9)


def test_equal_clients_may_be_given_together() -> None:
    p = np.array([0.02] * 10 + [0.8 / 5] * 5)
    together, many = np.array([0.02, 0.16]), np.array([10, 5])
    group, groups = np.arange(15) < 10, np.array([True, False])
    for events in (50, 5000):
        alone = mean_staleness(p, group, events), worst_staleness(p, group, events)
        pooled = (
            mean_staleness(together, groups, events, many),
            worst_staleness(together, groups, events, many),
        )
        assert pooled == pytest.approx(alone)


def test_in_the_long_run_a_group_waits_its_size_over_its_share() -> None:
    p = np.array([0.1, 0.3, 0.6])
    assert client_staleness(p) == pytest.approx([10, 10 / 3, 10 / 6])
    group = np.array([True, True, False])
    assert mean_staleness(p, group) == pytest.approx(2 / 0.4)
    assert mean_staleness(p, group, 10**6) == pytest.approx(5, rel=1e-5)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_versions_between_hand_out_and_answer(size: int) -> None:
    # Handed out after event a, answered at event n: blocks close at the multiples of K between.
    for stale in (1, 4, 25):
        versions = [(a + stale - 1) // size - a // size for a in range(size)]
        assert in_versions(stale, "blocks", size) == pytest.approx(np.mean(versions))
        assert in_versions(stale, "window", size) == stale - 1


def test_a_million_clients_take_a_moment() -> None:
    p = arrival_shares(np.random.default_rng(0).uniform(0.5, 3, 10**6))
    group = np.arange(p.size) < 1000
    assert mean_staleness(p, group) == pytest.approx(1000 / p[:1000].sum())
    assert worst_staleness(p, group, 10**6) < 10**6


def test_what_makes_no_sense_is_refused() -> None:
    p = np.array([0.5, 0.5])
    with pytest.raises(BadInput, match="no clients"):
        mean_staleness(p, np.zeros(2, bool))
    with pytest.raises(BadInput, match="events = 0"):
        worst_staleness(p, np.ones(2, bool), 0)
