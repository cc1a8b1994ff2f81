from __future__ import annotations

import pytest
from tests.strategies.server import begun, fed, sent

from fedraw.errors import RefusedUpdate
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.protocol import Event, Joined, Left

TWO = {client: {"x": 1} for client in "ab"}
THREE = {client: {"x": 1} for client in "abc"}


def test_samples_weigh() -> None:
    strategy = FedAvg()
    events = [sent("a", 0, 8, examples=1), sent("b", 4, 0, examples=3)]
    state = fed(strategy, begun(strategy, TWO, 9, 9), events)
    assert (state.version, state.model.tolist()) == (1, [3, 2])
    assert state.contents == (["a", "b"], [0.25, 0.75])


def test_or_everyone_weighs_the_same() -> None:
    strategy = FedAvg(weighting="uniform")
    events = [sent("a", 0, examples=1), sent("b", 4, examples=3)]
    assert fed(strategy, begun(strategy, TWO, 9), events).model.tolist() == [2]


def test_nobody_is_handed_a_model_until_the_round_is_in_and_then_everyone() -> None:
    strategy = FedAvg()
    state = begun(strategy, THREE, 9)
    handed = []
    for client in "cab":
        state, receivers = strategy.step(state, sent(client, 1))
        handed.append(list(receivers))
    assert handed == [[], [], ["a", "b", "c"]]


def test_rounds_follow_one_another() -> None:
    strategy = FedAvg()
    first = [sent("a", 1), sent("b", 3)]
    second = [sent("b", 5, version=1), sent("a", 7, version=1)]
    state = fed(strategy, begun(strategy, TWO, 9), first + second)
    assert (state.version, state.model.tolist()) == (2, [6])


def test_contents_are_empty_within_a_round() -> None:
    strategy = FedAvg()
    events = [sent("a", 1), sent("b", 3), sent("a", 5, version=1)]
    state = fed(strategy, begun(strategy, TWO, 9), events)
    assert list(state.contents.weights) == []


def test_a_leaver_frees_the_round_that_waits_for_it() -> None:
    strategy = FedAvg()
    state = fed(strategy, begun(strategy, THREE, 9), [sent("a", 1), sent("b", 3)])
    state, receivers = strategy.step(state, Left("c"))
    assert (state.version, state.model.tolist()) == (1, [2])
    assert list(receivers) == ["a", "b"]


def test_a_leaver_that_has_sent_still_counts() -> None:
    strategy = FedAvg()
    events: list[Event] = [sent("a", 1), Left("a"), sent("b", 3)]
    state = fed(strategy, begun(strategy, TWO, 9), events)
    assert (state.model.tolist(), state.contents.clients) == ([2], ["a", "b"])
    assert list(state.round.awaited) == ["b"]


def test_a_round_that_everyone_left_before_sending_changes_no_model() -> None:
    strategy = FedAvg()
    state = fed(strategy, begun(strategy, TWO, 9), [Left("a"), Left("b")])
    assert (state.version, state.model.tolist()) == (0, [9])
    state, receivers = strategy.step(state, Joined("c", {"x": 1}))
    assert list(receivers) == ["c"]
    assert fed(strategy, state, [sent("c", 4)]).model.tolist() == [4]


def test_a_newcomer_waits_for_the_next_round() -> None:
    strategy = FedAvg()
    state = fed(strategy, begun(strategy, TWO, 9), [sent("a", 1)])
    state, receivers = strategy.step(state, Joined("c", {"x": 1}))
    assert list(receivers) == []
    with pytest.raises(RefusedUpdate, match="client 'c' is not awaited in this round"):
        strategy.step(state, sent("c", 100))
    state, receivers = strategy.step(state, sent("b", 3))
    assert (state.model.tolist(), list(receivers)) == ([2], ["a", "b", "c"])


def test_a_rejoin_waits_for_the_next_round_too() -> None:
    strategy = FedAvg()
    events: list[Event] = [sent("a", 1), Left("c"), Joined("c", {"x": 1})]
    state = fed(strategy, begun(strategy, THREE, 9), events)
    with pytest.raises(RefusedUpdate, match="client 'c' is not awaited in this round"):
        strategy.step(state, sent("c", 100))
    assert fed(strategy, state, [sent("b", 3)]).model.tolist() == [2]
