"""Methods that make up for how often clients arrive: closed forms against every case there is.

Where no list of all cases is short enough, the method's rule is simulated here without training,
written down from its paper and not with the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM, measured, one_by_one, slot_law

import fedraw
from fedraw.auditing.influence import influence
from fedraw.auditing.methods import BY_METHOD, RULES
from fedraw.auditing.participation import (
    corrected_influence,
    debt_influence,
    debtors,
    interval_influence,
    recent_influence,
    staleness_influence,
)
from fedraw.auditing.presence import arrival_shares, wanted_shares
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.core.types import Floats, Ints
from fedraw.core.update import Update
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Setup

RATES = st.lists(st.floats(0.02, 1.0), min_size=3, max_size=5)


def ones(shares: Floats) -> Ints:
    return np.ones(shares.size, np.int64)


def shares_of(rates: Sequence[float]) -> Floats:
    return arrival_shares(1 / np.array(rates))


def unequal(clients: int = 8) -> Floats:
    """A quarter of the clients is about ten times as slow."""
    rng = np.random.default_rng(3)
    rates = 1 / rng.uniform(0.5, 1.5, clients)
    rates[: clients // 4] /= 10
    return np.asarray(rates / rates.sum(), np.float64)


def arrivals(shares: Floats, number: int) -> Ints:
    return np.random.default_rng(1).choice(shares.size, number, p=shares)


@CALM
@given(RATES, st.lists(st.floats(0.1, 1.0), min_size=5, max_size=5), st.integers(1, 4))
def test_debt_over_every_round_there_is(rates: list[float], sizes: list[float], size: int) -> None:
    shares = shares_of(rates)
    wanted = np.array(sizes[: shares.size]) / sum(sizes[: shares.size])
    taken = debtors(shares, wanted, size).astype(bool)
    weight = np.where(taken, wanted, 0.0)
    weight *= min(1.0, 0.5 / weight.sum()) if weight.any() else 1.0
    rho, x = float(weight.sum()), wanted / shares
    truth = np.zeros(shares.size)
    for slots, chance in slot_law(shares, size).items():
        common = [i for i in slots if not taken[i]]
        truth += chance * (weight if common else weight / rho)
        for i in common:
            truth[i] += chance * (1 - rho) * x[i] / sum(x[j] for j in common)
    found = debt_influence(shares, ones(shares), wanted, size, 0.5)
    assert found == pytest.approx(truth, rel=2e-5, abs=1e-9)


def test_the_largest_debts_are_kept_and_a_group_may_be_cut() -> None:
    shares, wanted = np.array([0.4, 0.1, 0.1]), np.array([0.1, 0.2, 0.15])
    assert debtors(shares, wanted, 1).tolist() == [0, 1, 0]
    assert debtors(shares, wanted, 3).tolist() == [0, 1, 1]  # the first one owes nothing
    many = np.array([1, 4, 2])
    assert debtors(shares / 2, wanted / 2, 5, many).tolist() == [0, 4, 1]
    cut = debt_influence(np.array([0.4, 0.15]), np.array([1, 4]), np.array([0.2, 0.2]), 3, 0.5)
    assert cut @ [1, 4] == pytest.approx(1)


def test_debt_replay_weighs_in_the_simulator_what_the_closed_form_says() -> None:
    counts = {i: {"x": 10 + 5 * i, "y": 3} for i in range(7)} | {7: {"x": 5, "odd": 25}}
    table = LabelTable.from_counts(counts)
    seconds = np.array([1, 2, 1.2, 0.7, 1, 8, 1.1, 9], float)
    shares = arrival_shares(seconds)
    # The simulator of these tests lets every client train on one sample.
    wanted = wanted_shares(rarity_scores(table), np.ones(8), "mix")
    assert 0 < debtors(shares, wanted, 3).sum() == 3
    strategy = fedraw.Replay(3, select="debt", target="mix")
    run = measured(strategy, seconds, table, 20_000, seed=2)
    groups = one_by_one(1 / seconds, rarity_scores(table))
    closed = influence(groups, 3, RULES["fedraw-replay-debt"])
    # The shares of arrivals are estimates in the strategy, and R changes while they settle.
    assert run.influence == pytest.approx(closed, rel=0.06, abs=0.003)


@CALM
@given(RATES, st.integers(1, 5))
def test_recent_clients_over_every_window_there_is(rates: list[float], window: int) -> None:
    shares = shares_of(rates)
    truth = np.zeros(shares.size)
    for slots, chance in slot_law(shares, window).items():
        held = sorted(set(slots))
        truth[held] += chance / len(held)
    found = recent_influence(shares, ones(shares), window)
    assert found == pytest.approx(truth, rel=0.1, abs=0.02)


@pytest.mark.parametrize("tau", [3, 8, 24])
def test_aced_by_contact_and_by_start(tau: int) -> None:
    shares = unequal()
    contact, start = np.zeros(8), np.zeros(8)
    heard, begun, handed = np.full(8, -(10**6)), np.full(8, -(10**6)), np.zeros(8, int)
    for t, i in enumerate(arrivals(shares, 30_000).tolist()):
        heard[i], begun[i], handed[i] = t, handed[i], t + 1
        for total, since in ((contact, heard), (start, begun)):
            inside = t - since <= tau
            np.add(total, inside / max(1, int(inside.sum())), out=total)
    found = recent_influence(shares, ones(shares), tau + 1)
    assert found == pytest.approx(contact / contact.sum(), rel=0.1, abs=0.003)
    found = recent_influence(shares, ones(shares), tau + 2, needed=2)
    assert found == pytest.approx(start / start.sum(), rel=0.15, abs=0.005)


@pytest.mark.parametrize("cutoff", [4, 50])
def test_fedau_and_fedstale_by_their_intervals(cutoff: int) -> None:
    """FedAU takes a client once in a step; FedStale, with β = 1/2, as often as it arrives."""
    size, shares = 3, unequal()
    misses, total, count = np.zeros(8, int), np.zeros(8), np.zeros(8)
    once, repeated = np.zeros(8), np.zeros(8)
    steps = arrivals(shares, 60_000).reshape(-1, size)
    for step in steps:
        weight = np.where(count > 0, total / np.maximum(count, 1), 1.0)
        inside = np.isin(np.arange(8), step)
        once += np.where(inside, weight, 0)
        repeated += 0.5 + 0.5 * weight * np.bincount(step, minlength=8)
        misses += 1
        finished = inside | (misses == cutoff)
        total += np.where(finished, misses, 0)
        count += finished
        misses[finished] = 0
    found = interval_influence(shares, ones(shares), size, cutoff)
    assert found == pytest.approx(once / once.sum(), rel=0.08)
    found = corrected_influence(shares, ones(shares), size, cutoff, 0.5)
    assert found == pytest.approx(repeated / repeated.sum(), rel=0.08)


@pytest.mark.parametrize(("size", "offset"), [(1, 0.0), (4, 0.0), (4, 0.25)])
def test_fedstaleweight_by_its_staleness(size: int, offset: float) -> None:
    shares = unequal()
    version, handed, total = 0, [0] * 8, np.zeros(8)
    stale: list[list[int]] = [[] for _ in range(8)]
    buffer: list[tuple[int, float]] = []
    for i in arrivals(shares, 60_000).tolist():
        stale[i] = [*stale[i], version - handed[i]][-5:]
        buffer.append((i, sum(stale[i]) / len(stale[i]) + offset))
        if len(buffer) == size:
            whole = sum(mean for _, mean in buffer)
            for j, mean in buffer:
                total[j] += mean / whole if whole else 1 / size
            version, buffer = version + 1, []
        handed[i] = version
    found = staleness_influence(shares, ones(shares), size, 5, offset)
    assert found == pytest.approx(total / total.sum(), rel=0.08)


# Methods that add what clients send, without the feedback of replay.
ADDING = [
    name
    for name, method in BY_METHOD.items()
    if method.sends == "delta" and method.rule.weighting not in ("replay", "debt")
]


@pytest.mark.parametrize("name", ADDING)
def test_a_model_moves_towards_each_client_by_its_influence(name: str) -> None:
    """Client i always sends the i-th unit vector, so the model counts how much it has moved."""
    size, shares = 3, unequal()
    method = CATALOG[name]
    strategy = method.make({"buffer": size} if BY_METHOD[name].has_buffer else {})
    table = LabelTable.from_counts({client: {"x": 1} for client in range(8)})
    state, _ = strategy.start(Setup(np.zeros(8, np.float32), table))
    units, handed, begun = np.eye(8, dtype=np.float32), [0] * 8, np.zeros(8)
    for event, i in enumerate(arrivals(shares, 12_000).tolist()):
        if event == 1200:
            begun = state.model.astype(np.float64)
        state, _ = strategy.step(state, Arrived(Update(i, handed[i], units[i], 1)))
        handed[i] = state.version
    moved = state.model - begun
    closed = influence(one_by_one(shares), size, RULES[name])
    assert moved / moved.sum() == pytest.approx(closed, rel=0.12, abs=0.004)


@pytest.mark.parametrize("clients", [1, 2, 30])
def test_clients_that_arrive_alike_weigh_alike(clients: int) -> None:
    shares = np.full(clients, 1 / clients)
    many = ones(shares)
    for found in (
        debt_influence(shares, many, shares, 3, 0.5),
        interval_influence(shares, many, 3, 50),
        corrected_influence(shares, many, 3, 50, 0.5),
        recent_influence(shares, many, 7),
        recent_influence(shares, many, 8, needed=2),
        staleness_influence(shares, many, 3, 5),
    ):
        assert found == pytest.approx(shares)


def test_a_group_of_many_is_as_many_groups_of_one() -> None:
    shares, many = np.array([0.2, 0.05, 0.01]), np.array([2, 8, 20])
    alone = np.repeat(shares, many)
    forms: list[Callable[[Floats, Ints], Floats]] = [
        lambda p, n: interval_influence(p, n, 4, 50),
        lambda p, n: corrected_influence(p, n, 4, 50, 0.5),
        lambda p, n: recent_influence(p, n, 31),
        lambda p, n: staleness_influence(p, n, 4, 5),
    ]
    for form in forms:
        found = np.repeat(form(shares, many), many)
        assert found == pytest.approx(form(alone, ones(alone)), rel=1e-9)
