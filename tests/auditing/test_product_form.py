from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM

from fedraw.auditing.presence import (
    coin_scale,
    heads,
    log_chance_of_none,
    mean_field_presence,
    subsets,
)
from fedraw.core.buffer import OneSlotBuffer, Slot
from fedraw.core.types import Floats
from fedraw.core.update import Update

# Rates from a microsecond to the age of the universe differ by 1e24; these differ by 1e260.
WILD = st.lists(st.floats(-300, 300), min_size=1, max_size=8)
TAME = st.lists(st.floats(-8, 8), min_size=2, max_size=8)
ALL_SIZES = st.data()


def drawn_size(data: st.DataObject, clients: int) -> int:
    return data.draw(st.integers(1, clients), "size")


def log_sum(logs: list[float]) -> float:
    return float(np.logaddexp.reduce(logs)) if logs else -math.inf


def all_subsets(log_odds: list[float], size: int) -> tuple[Floats, float]:
    """Presence and log e_K by enumeration, in logarithms."""
    held = list(combinations(range(len(log_odds)), size))
    logs = [sum(log_odds[i] for i in subset) for subset in held]
    total = log_sum(logs)
    present = [
        log_sum([one for one, subset in zip(logs, held, strict=True) if i in subset])
        for i in range(len(log_odds))
    ]
    return np.exp(np.array(present) - total), total


@CALM
@given(WILD, ALL_SIZES)
def test_all_subsets_however_unequal_the_odds(log_odds: list[float], data: st.DataObject) -> None:
    size = drawn_size(data, len(log_odds))
    presence, log_weight = all_subsets(log_odds, size)
    law = subsets(np.array(log_odds), size)
    assert law.presence == pytest.approx(presence, rel=0, abs=1e-11)
    assert law.log_weight == pytest.approx(log_weight, rel=1e-12, abs=1e-10)


@CALM
@given(TAME, ALL_SIZES)
def test_small_chances_keep_their_digits(log_odds: list[float], data: st.DataObject) -> None:
    size = drawn_size(data, len(log_odds))
    assert subsets(np.array(log_odds), size).presence == pytest.approx(
        all_subsets(log_odds, size)[0], rel=1e-8, abs=0
    )


@CALM
@given(WILD, ALL_SIZES)
def test_sums_to_the_size_and_stays_a_chance(log_odds: list[float], data: st.DataObject) -> None:
    size = drawn_size(data, len(log_odds))
    for presence in (
        subsets(np.array(log_odds), size).presence,
        mean_field_presence(np.array(log_odds), size),
    ):
        assert presence.sum() == pytest.approx(size, rel=1e-9)
        assert ((presence >= 0) & (presence <= 1)).all()


@CALM
@given(st.lists(st.floats(-40, 40), min_size=2, max_size=40), ALL_SIZES)
def test_the_quicker_the_more_often_present(log_odds: list[float], data: st.DataObject) -> None:
    odds = np.sort(log_odds)
    size = drawn_size(data, odds.size)
    assert (np.diff(subsets(odds, size).presence) >= -1e-12).all()
    assert (np.diff(mean_field_presence(odds, size)) >= -1e-12).all()


@CALM
@given(WILD, st.floats(-200, 200), ALL_SIZES)
def test_only_ratios_of_odds_matter(
    log_odds: list[float], shift: float, data: st.DataObject
) -> None:
    size = drawn_size(data, len(log_odds))
    plain, moved = subsets(np.array(log_odds), size), subsets(np.array(log_odds) + shift, size)
    assert moved.presence == pytest.approx(plain.presence, rel=0, abs=1e-10)
    assert moved.log_weight == pytest.approx(plain.log_weight + size * shift, rel=1e-10, abs=1e-8)


@CALM
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.integers(1, 5)), min_size=1, max_size=6), ALL_SIZES
)
def test_a_group_is_as_many_clients(groups: list[tuple[float, int]], data: st.DataObject) -> None:
    log_odds = np.array([odds for odds, _ in groups])
    many = np.array([count for _, count in groups])
    size = drawn_size(data, int(many.sum()))
    one_by_one, together = subsets(np.repeat(log_odds, many), size), subsets(log_odds, size, many)
    assert np.repeat(together.presence, many) == pytest.approx(one_by_one.presence, abs=1e-10)
    assert together.log_weight == pytest.approx(one_by_one.log_weight, rel=1e-10, abs=1e-9)
    assert np.repeat(mean_field_presence(log_odds, size, many), many) == pytest.approx(
        mean_field_presence(np.repeat(log_odds, many), size), abs=1e-10
    )


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (2, 1), (7, 3), (7, 6), (7, 7), (500, 20)])
def test_equal_clients(clients: int, size: int) -> None:
    law = subsets(np.full(clients, -3.0), size)
    assert law.presence == pytest.approx(size / clients)
    assert law.log_weight == pytest.approx(math.log(math.comb(clients, size)) - 3 * size)
    assert mean_field_presence(np.full(clients, -3.0), size) == pytest.approx(size / clients)


def test_by_hand() -> None:
    odds = np.array([1.0, 2.0, 3.0])
    assert subsets(np.log(odds), 1).presence == pytest.approx(odds / 6)
    # Two of three: e_2 = 2 + 3 + 6, and whoever is left out is left out with chance 1/o.
    law = subsets(np.log(odds), 2)
    assert law.log_weight == pytest.approx(math.log(11))
    assert law.presence == pytest.approx([5 / 11, 8 / 11, 9 / 11])
    assert subsets(np.log(odds), 3).presence.tolist() == [1, 1, 1]
    assert subsets(np.log(odds), 3).log_weight == pytest.approx(math.log(6))
    nobody = subsets(np.log(odds), 0)
    assert (nobody.presence.tolist(), nobody.log_weight) == ([0, 0, 0], 0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_the_stationary_law_of_the_buffer_with_one_slot_per_client(size: int) -> None:
    """Every ordered buffer has chance ∝ Π p_i, and one more arrival leaves that as it is."""
    p = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    orders = list(permutations(range(5), size))
    odds = {order: math.prod(p[i] for i in order) for order in orders}
    after = dict.fromkeys(orders, 0.0)
    for order in orders:
        for client in range(5):
            buffer = OneSlotBuffer(size)
            for held in (*order, client):
                buffer.add(Slot(Update(held, 0, np.zeros(1, np.float32), 1), 1.0))
            after[tuple(map(int, buffer.clients))] += odds[order] * p[client]
    assert after == pytest.approx(odds)
    total = sum(odds.values())
    present = [sum(odds[o] for o in orders if i in o) / total for i in range(5)]
    assert subsets(np.log(p), size).presence == pytest.approx(present)


@CALM
@given(WILD, ALL_SIZES, st.integers(0, 255))
def test_the_chance_that_nobody_of_a_group_is_in(
    log_odds: list[float], data: st.DataObject, bits: int
) -> None:
    size = drawn_size(data, len(log_odds))
    group = np.array([bool(bits >> i & 1) for i in range(len(log_odds))])
    others = [odds for odds, inside in zip(log_odds, group, strict=True) if not inside]
    found = log_chance_of_none(np.array(log_odds), group, size)
    if len(others) < size:
        assert found == -math.inf
        return
    expected = all_subsets(others, size)[1] - all_subsets(log_odds, size)[1]
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-9)
    assert found <= 0


@CALM
@given(st.lists(st.floats(-300, 300), min_size=2, max_size=50), ALL_SIZES)
def test_the_coins_fall_heads_as_often_as_there_are_slots(
    log_odds: list[float], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(log_odds) - 1))
    odds = np.array(log_odds)
    assert heads(odds + coin_scale(odds, size)).sum() == pytest.approx(size, rel=1e-9)


def test_heads_at_both_ends() -> None:
    assert heads(np.array([-1e4, -math.log(3), 0, math.log(3), 1e4])) == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )


@pytest.mark.parametrize(
    ("clients", "size", "error"), [(10, 3, 0.1), (100, 10, 0.02), (1000, 100, 3e-3)]
)
def test_the_mean_field_gets_better_with_the_buffer(clients: int, size: int, error: float) -> None:
    log_odds = np.linspace(0, math.log(1000), clients)
    gap = np.abs(mean_field_presence(log_odds, size) - subsets(log_odds, size).presence).max()
    assert error / 20 < gap < error


def test_a_hundred_thousand_clients_at_once() -> None:
    log_odds = np.random.default_rng(0).uniform(0, math.log(1000), 100_000)
    assert subsets(log_odds, 500).presence.sum() == pytest.approx(500, rel=1e-9)
