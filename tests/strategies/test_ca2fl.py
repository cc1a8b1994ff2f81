from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from tests.strategies.server import On, Server, begun, fed, sent

from fedraw.core.layout import Layout
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.protocol import Event, Joined, Left

FOUR = {client: {"x": 1} for client in "abcd"}
TWO = {client: {"x": 1} for client in "ab"}


def test_two_steps_by_hand() -> None:
    strategy = CA2FL(2)
    state = fed(strategy, begun(strategy, FOUR, 0), [sent("a", 2), sent("b", 4)])
    assert state.model.tolist() == [3]
    # h = (2 + 4)/4, and v = h + ((6 - 2) + (8 - 0))/2: of four clients two were heard.
    state = fed(strategy, state, [sent("a", 6), sent("c", 8)])
    assert state.model.tolist() == [3 + 1.5 + 6]
    # h = (6 + 4 + 8)/4, and both send what is cached.
    state = fed(strategy, state, [sent("b", 4), sent("c", 8)])
    assert state.model.tolist() == [10.5 + 4.5]
    assert state.version == 3


def test_the_first_step_is_fedbuffs() -> None:
    calibrated, plain = Server(CA2FL(4, server_lr=0.7)), Server(FedBuff(4, server_lr=0.7))
    assert np.array_equal(calibrated.run(4)[-1], plain.run(4)[-1])
    assert calibrated.state.version == 1
    assert not np.array_equal(calibrated.run(4)[-1], plain.run(4)[-1])


def test_once_all_are_cached_and_current_a_step_is_the_mean_over_all_clients() -> None:
    strategy = CA2FL(2)
    change = {"a": 1.0, "b": 2.0, "c": 6.0, "d": 11.0}
    state = begun(strategy, FOUR, 0)
    state = fed(strategy, state, [sent(client, change[client]) for client in "abcd"])
    for pair in ("ab", "cd", "ad", "aa"):
        before = float(state.model[0])
        state = fed(strategy, state, [sent(client, change[client]) for client in pair])
        assert float(state.model[0]) - before == 5


@pytest.mark.parametrize(("refresh", "step"), [("round-start", 16), ("arrival", 12)])
def test_a_client_twice_in_one_buffer(
    refresh: Literal["round-start", "arrival"], step: float
) -> None:
    strategy = CA2FL(2, refresh=refresh)
    state = fed(strategy, begun(strategy, TWO, 0), [sent("a", 2), sent("b", 4)])
    # h = 3; then 3 + ((10 - 2) + (20 - 2))/2, or 3 + ((10 - 2) + (20 - 10))/2.
    state = fed(strategy, state, [sent("a", 10), sent("a", 20)])
    assert state.model.tolist() == [3 + step]
    # Either way the cache has the newest: h = (20 + 4)/2.
    state = fed(strategy, state, [sent("a", 20), sent("b", 4)])
    assert state.model.tolist() == [3 + step + 12]


@pytest.mark.parametrize(("refresh", "model"), [("round-start", 5), ("arrival", 3)])
def test_a_newcomer_twice_in_one_buffer(
    refresh: Literal["round-start", "arrival"], model: float
) -> None:
    strategy = CA2FL(2, refresh=refresh)
    state = fed(strategy, begun(strategy, TWO, 0), [sent("a", 4), sent("a", 6)])
    assert state.model.tolist() == [model]


def test_the_server_rate_scales_the_step_but_not_the_cache() -> None:
    strategy = CA2FL(2, server_lr=0.5)
    state = fed(strategy, begun(strategy, TWO, 0), [sent("a", 2), sent("b", 4)])
    state = fed(strategy, state, [sent("a", 2), sent("b", 4)])
    assert state.model.tolist() == [1.5 + 1.5]


def test_staleness_does_not_count() -> None:
    strategy = CA2FL(1)
    state = fed(strategy, begun(strategy, TWO, 0), [sent("a", 0)] * 5 + [sent("b", 8, version=0)])
    assert state.model.tolist() == [8]


def test_a_leaver_takes_its_cached_difference_along() -> None:
    strategy = CA2FL(2)
    state = fed(strategy, begun(strategy, FOUR, 0), [sent("a", 2), sent("b", 4), Left("b")])
    # h = 2/3 of the three that are left.
    state = fed(strategy, state, [sent("a", 2), sent("c", 0)])
    assert state.model.tolist() == pytest.approx([3 + 2 / 3])


def test_the_last_member_is_measured_against_its_own_cache() -> None:
    strategy = CA2FL(1)
    state = fed(strategy, begun(strategy, TWO, 0), [Left("b"), sent("a", 2)])
    # h = 2/1, and a sends what is cached.
    assert fed(strategy, state, [sent("a", 2)]).model.tolist() == [2 + 2]


def test_a_client_that_left_before_the_step_is_not_cached() -> None:
    strategy = CA2FL(2)
    events: list[Event] = [sent("a", 2), Left("a"), sent("b", 4)]
    state = fed(strategy, begun(strategy, FOUR, 0), events)
    assert state.model.tolist() == [3]
    state = fed(strategy, state, [sent("b", 4), sent("c", 0)])
    assert state.model.tolist() == pytest.approx([3 + 4 / 3])


def test_a_rejoin_starts_without_a_cached_difference() -> None:
    strategy = CA2FL(2)
    events: list[Event] = [sent("a", 2), sent("b", 4), Left("b"), Joined("b", {"x": 1})]
    state = fed(strategy, begun(strategy, TWO, 0), events)
    state = fed(strategy, state, [sent("a", 2), sent("b", 4)])
    assert state.model.tolist() == [3 + 1 + 2]


@pytest.mark.parametrize("refresh", ["round-start", "arrival"])
def test_a_rejoin_within_a_buffer_starts_anew_too(
    refresh: Literal["round-start", "arrival"],
) -> None:
    strategy = CA2FL(2, refresh=refresh)
    events: list[Event] = [sent("a", 4), Left("a"), Joined("a", {"x": 1}), sent("a", 8)]
    assert fed(strategy, begun(strategy, TWO, 0), events).model.tolist() == [6]


def test_statistics_are_the_plain_mean_and_not_cached() -> None:
    layout = Layout.of([("w", (1,))], [("mean", (1,))])
    strategy = On(layout, CA2FL(2, server_lr=0.5))
    state = fed(strategy, begun(strategy, TWO, 0, 9), [sent("a", 2, 2), sent("b", 4, 4)])
    assert state.model.tolist() == [1.5, 3]
    state = fed(strategy, state, [sent("a", 2, 10), sent("a", 2, 20)])
    assert state.model.tolist() == [3, 15]
