"""The paper's four propositions, on the project's own arrivals, buffers, weights and strategies.

Where a proposition is false as it stands, its counterexample is a test, and so is what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.strategies.server import begun, sent

from fedraw.auditing.presence import arrival_shares, group_presence, presence
from fedraw.core.buffer import Buffer, OneSlotBuffer, SlidingWindow, Slot
from fedraw.core.randomness import Streams
from fedraw.core.types import ClientId, Floats
from fedraw.core.update import Update
from fedraw.core.weighting import Cap, weights
from fedraw.simulation.speeds import mean_seconds
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Contents, Strategy

SECONDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)
SHARES = st.lists(st.floats(0.01, 100), min_size=2, max_size=9).map(arrival_shares)


# 1. SlowerHolders clients arrive less often.


def shares_per_client(rare: Sequence[float], common: Sequence[float]) -> tuple[float, float]:
    p = arrival_shares([*rare, *common])
    return float(p[: len(rare)].mean()), float(p[len(rare) :].mean())


def test_slower_on_average_need_not_mean_rarer() -> None:
    rare, common = shares_per_client([0.1, 9.9], [1.0, 1.0])
    # A mean of 5 seconds against 1; yet one rare client alone sends ten of twelve updates.
    assert rare == pytest.approx((10 + 1 / 9.9) / 2 / (12 + 1 / 9.9))
    assert rare > 5 * common


@given(SECONDS, SECONDS)
def test_the_mean_rate_decides_and_nothing_else(rare: list[float], common: list[float]) -> None:
    r, c = np.mean(1 / np.array(rare)), np.mean(1 / np.array(common))
    assume(abs(r - c) > 1e-9 * c)
    slow, fast = shares_per_client(rare, common)
    assert (slow < fast) == (r < c)


@given(SECONDS, st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_if_every_rare_client_is_slower_than_every_common_one(
    common: list[float], more: list[float]
) -> None:
    rare = [max(common) * 1.001 + extra for extra in more]
    p = arrival_shares([*rare, *common])
    assert p[: len(rare)].max() < p[len(rare) :].min()


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 10)), min_size=1, max_size=8))
def test_if_slower_client_for_client(pairs: list[tuple[float, float]]) -> None:
    common = [seconds for seconds, _ in pairs]
    rare = [seconds * (1.001 + extra) for seconds, extra in pairs]
    slow, fast = shares_per_client(rare, common)
    assert slow < fast


@given(st.integers(0, 10**6))
def test_the_papers_speeds_are_separated(seed: int) -> None:
    p = arrival_shares(mean_seconds("correlated", 30, range(6), Streams(seed).generator("speeds")))
    assert p[:6].max() <= p[6:].min()


# 2. Under equal weights lower presence means lower influence.


@given(SHARES, st.data())
@settings(deadline=None)
def test_presence_and_influence_rise_with_the_share_of_arrivals(
    p: Floats, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, p.size))
    ordered = np.sort(p)
    for kind in ("window", "dedup"):
        assert (np.diff(presence(ordered, size, kind)) >= -1e-9).all()


def played(strategy: Strategy[Any], arrivals: Sequence[int]) -> list[Contents]:
    """The buffer at every aggregation; each client holds a label of its own."""
    state = begun(strategy, {client: {client: 1} for client in range(9)}, 0.0)
    seen = []
    for client in arrivals:
        before = state.version
        state, _ = strategy.step(state, sent(client, 0.0))
        if state.version > before:
            seen.append(state.contents)
    return seen


def present(buffers: list[Contents], client: int) -> int:
    return sum(client in held.clients for held in buffers)


def influence(buffers: list[Contents], client: int) -> float:
    return sum(
        weight
        for held in buffers
        for other, weight in zip(held.clients, held.weights, strict=True)
        if other == client
    )


ARRIVALS = st.lists(st.integers(0, 8), max_size=60)


@given(ARRIVALS, st.integers(1, 6))
@settings(deadline=None)
def test_with_one_slot_each_influence_is_presence_over_k(arrivals: list[int], size: int) -> None:
    buffers = played(FedRAW(size, weighting="uniform"), arrivals)
    for client in range(9):
        assert influence(buffers, client) == pytest.approx(present(buffers, client) / size)


@given(ARRIVALS, st.integers(1, 6))
@settings(deadline=None)
def test_with_repeated_slots_presence_over_k_is_only_a_lower_bound(
    arrivals: list[int], size: int
) -> None:
    buffers = played(FedFa(size), arrivals)
    for client in range(9):
        assert influence(buffers, client) >= present(buffers, client) / size - 1e-9


def test_who_is_present_less_may_weigh_more_where_slots_repeat() -> None:
    bursts, steady = 0, 1
    buffers = played(FedFa(2), [bursts] * 4 + [2, steady, 3, steady, 4, steady, 5])
    assert [present(buffers, client) for client in (bursts, steady)] == [4, 6]
    assert [influence(buffers, client) for client in (bursts, steady)] == [3.5, 3.0]


# 3. One slot per client: more distinct clients.


def fill(buffer: Buffer, arrivals: Sequence[int]) -> list[list[ClientId]]:
    seen = []
    for client in arrivals:
        buffer.add(Slot(Update(client, 0, np.zeros(1, np.float32), 1), 1.0))
        seen.append(buffer.clients)
    return seen


@given(ARRIVALS, st.integers(1, 8))
def test_never_fewer_distinct_clients_whatever_arrives(arrivals: list[int], size: int) -> None:
    one_slot, window = fill(OneSlotBuffer(size), arrivals), fill(SlidingWindow(size), arrivals)
    for event, (own, last) in enumerate(zip(one_slot, window, strict=True), start=1):
        ever = len(set(arrivals[:event]))
        assert len(own) == len(set(own)) == min(size, ever)
        assert len(set(last)) <= len(own)


def test_yet_it_may_lack_a_client_that_the_window_holds() -> None:
    # Coming again does not renew its age: 0 is the oldest, and 3 pushes it out.
    arrivals = [0, 1, 2, 0, 3]
    assert fill(OneSlotBuffer(3), arrivals)[-1] == [1, 2, 3]
    assert fill(SlidingWindow(3), arrivals)[-1] == [2, 0, 3]


def test_a_fast_client_may_be_present_less_often() -> None:
    p = np.array([0.9, 0.05, 0.05])
    assert presence(p, 2, "window")[0] == pytest.approx(0.99)
    assert presence(p, 2, "dedup")[0] == pytest.approx(0.09 / 0.0925)


@given(SHARES, st.data())
@settings(deadline=None)
def test_a_group_of_clients_below_the_fair_share_is_present_more_often(
    p: Floats, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, p.size))
    slow = np.flatnonzero(p <= 1 / p.size)
    assume(slow.size)
    chosen = data.draw(st.sets(st.sampled_from(slow.tolist()), min_size=1))
    group = np.isin(np.arange(p.size), list(chosen))
    with_dedup = group_presence(p, group, size, "dedup")
    assert with_dedup >= group_presence(p, group, size, "window") - 1e-9


def test_buffers_of_one_slot_are_the_same() -> None:
    # Both hold the client that came last.
    for p in ([0.5, 0.5], [0.2, 0.8]):
        shares = np.array(p)
        assert presence(shares, 1, "dedup") == pytest.approx(presence(shares, 1, "window"))


# 4. Rarity weights.


SCORES = st.lists(st.integers(1, 1000), min_size=2, max_size=12)


@given(SCORES)
def test_a_higher_score_weighs_more_and_above_the_mean_more_than_a_slot(scores: list[int]) -> None:
    w = weights(scores)
    mean = sum(scores) / len(scores)
    for i, own in enumerate(scores):
        assert (own > mean) == (w[i] > 1 / len(scores) + 1e-12)
        for j, other in enumerate(scores):
            assert (own > other) == (w[i] > w[j])


@given(SCORES, st.sampled_from(["naive", "water-filling"]), st.floats(0, 1))
def test_under_a_cap_a_higher_score_never_weighs_less(
    scores: list[int], cap: Cap, part: float
) -> None:
    w = weights(scores, cap, max(part, 1 / len(scores)))
    for i, own in enumerate(scores):
        for j, other in enumerate(scores):
            if own > other:
                assert w[i] >= w[j] - 1e-12


def test_two_clients_at_the_cap_weigh_the_same() -> None:
    assert weights([9, 8, 1], "water-filling", 0.4) == pytest.approx([0.4, 0.4, 0.2])


def test_in_the_buffer_of_a_run() -> None:
    counts: dict[ClientId, dict[str, int]] = {i: {"common": 10} for i in range(5)}
    counts[5] = {"common": 5, "rare": 5}
    strategy = FedRAW(4)
    state = begun(strategy, counts, 0.0)
    for client in (0, 1, 5, 0, 2):
        state, _ = strategy.step(state, sent(client, 0.0))
    held = state.contents
    # Scores 1/6 for a common client, (1/6 + 1)/2 = 7/12 for the rare one: 2 against 7.
    assert held.clients == [0, 1, 5, 2]
    assert held.weights == pytest.approx([2 / 13, 2 / 13, 7 / 13, 2 / 13])
    assert held.weights[2] > 1 / 4
