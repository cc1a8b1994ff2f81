"""A huge but finite update does its harm while it is there, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.strategies.server import COUNTS, begun, fed, sent

from fedraw.core.aggregation import REFRESH
from fedraw.core.types import LabelCounts
from fedraw.errors import RefusedUpdate
from fedraw.strategies.area import AREA
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedau import FedAU
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.mifa import MIFA
from fedraw.strategies.protocol import Arrived, Event, Left, Strategy


@pytest.mark.parametrize(
    "strategy", [FedFa(3), FedRAW(3), FedRAW(3, cap="water-filling", cap_at=0.4)]
)
def test_the_rounding_error_of_a_huge_update_goes(strategy: Strategy[Any]) -> None:
    state = begun(strategy, COUNTS, 0)
    clients = list(COUNTS)
    state = fed(strategy, state, [sent(clients[0], 1e30)])
    for turn in range(3 * (REFRESH + 2)):
        update = sent(clients[turn % len(clients)], 2, version=state.version)
        state = fed(strategy, state, [update])
    assert state.model == pytest.approx([2], rel=1e-6)


@pytest.mark.parametrize("strategy", [FedFa(3), FedRAW(3)])
def test_it_goes_with_the_update_that_left(strategy: Strategy[Any]) -> None:
    state = begun(strategy, COUNTS, 0)
    clients = list(COUNTS)
    events = [sent(client, 0.1) for client in clients[:3]]
    events += [sent(clients[3], 1e15), *(sent(client, 0.1) for client in clients[:3])]
    state = fed(strategy, state, events)
    assert clients[3] not in state.contents.clients
    assert state.model == pytest.approx([0.1], rel=1e-6)


def test_a_huge_difference_that_its_client_replaces_leaves_nothing_behind() -> None:
    strategy = FedBuff(2, unique=True)
    events = [sent(0, 1e15), sent(0, 0.1), sent(1, 0.3)]
    assert fed(strategy, begun(strategy, COUNTS, 0), events).model == pytest.approx([0.2], rel=1e-6)


THREE: dict[str, LabelCounts] = {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}


@pytest.mark.parametrize("strategy", [MIFA(3), FedAU(3)])
def test_a_cache_forgets_a_huge_difference_that_its_client_replaces(
    strategy: Strategy[Any],
) -> None:
    events = [sent("a", 1e20), sent("b", 6), sent("a", 9)]
    state = fed(strategy, begun(strategy, THREE, 0), events)
    assert state.model == pytest.approx([5]), "(9 + 6) / 3"


def test_a_cache_forgets_a_huge_difference_of_a_client_that_leaves() -> None:
    strategy = MIFA(3)
    events: list[Event] = [sent("a", 1e20), sent("b", 6), Left("a"), sent("b", 6)]
    state = fed(strategy, begun(strategy, THREE, 0), events)
    assert state.model == pytest.approx([3]), "the mean of 6 and of c, which sent nothing"


def test_a_server_that_keeps_models_forgets_a_huge_one() -> None:
    strategy = AREA(1)
    events = [sent("b", 6), sent("c", 3), sent("a", 1e20), sent("a", 9)]
    assert fed(strategy, begun(strategy, THREE, 0), events).model == pytest.approx([6])


def test_a_sum_that_was_recomputed_still_forgets_a_huge_difference() -> None:
    """The cache's sum is recomputed after three steps; the huge difference is in it by then."""
    strategy = MIFA(1)
    events = [sent("a", 1e20), sent("b", 6), sent("c", 3), sent("a", 9)]
    state = fed(strategy, begun(strategy, THREE, 0), events)
    assert state.cache_sum.total == pytest.approx([18])


def test_so_does_that_of_a_cached_difference() -> None:
    strategy = CA2FL(2)
    state = begun(strategy, COUNTS, 0)
    clients = list(COUNTS)
    state = fed(strategy, state, [sent(clients[0], 1e30)])
    for turn in range(1, 8 * len(clients)):
        state = fed(strategy, state, [sent(clients[turn % len(clients)], 2, version=0)])
    before = state.cache_sum.total
    assert before == pytest.approx([2 * len(clients)], rel=1e-6)


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.zeros(1), "numbers of type float64, not float32"),
        (np.zeros((1, 1), np.float32), r"an array of shape \(1, 1\), the model has 1"),
    ],
)
def test_a_vector_of_another_kind_is_refused(vector: Any, reason: str) -> None:
    strategy = FedFa(3)
    state = begun(strategy, COUNTS, 0)
    update = sent(next(iter(COUNTS)), 0).update
    wrong = type(update)(update.client, 0, vector, 1)
    with pytest.raises(RefusedUpdate, match=reason):
        strategy.step(state, Arrived(wrong))


def test_a_buffer_is_a_whole_number() -> None:
    from fedraw.errors import BadInput

    half: Any = 2.5
    with pytest.raises(BadInput, match=r"buffer = 2.5 must be a whole number"):
        FedRAW(half)
