"""AREA: the mean of everyone's last model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import Server, begun, fed, sent
from tests.strategies.streams import STREAM, Stream, blocks, steps, streams

from fedraw.strategies.area import AREA, AREAState
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Event, Joined, Left

ABC = {client: {"x": 1} for client in "abc"}


@pytest.mark.parametrize(("buffer", "models"), [(1, [1, 3, 16 / 3, 13 / 3]), (2, [3, 4])])
def test_the_stream_of_three_clients(buffer: int, models: list[float]) -> None:
    assert steps(AREA(buffer), STREAM) == pytest.approx(models)


@given(streams())
@settings(max_examples=25, deadline=None)
def test_with_a_buffer_of_one_it_is_one_slot_per_client_filled_with_the_first_model(
    stream: Stream,
) -> None:
    slots = FedRAW(4, weighting="uniform")
    filled = steps(slots, [*((client, 0) for client in "abcd"), *stream], "abcd")
    # The fourth arrival fills the buffer, which is the first step.
    assert steps(AREA(1), stream, "abcd") == pytest.approx(filled[1:], rel=1e-4, abs=1e-4)


@given(st.integers(1, 4), streams())
@settings(max_examples=25, deadline=None)
def test_after_each_step_the_model_is_the_mean_of_what_everyone_sent_last(
    buffer: int, stream: Stream
) -> None:
    """However often a client is in the buffer."""
    last, start, expected, model = dict.fromkeys("abcd", 0.0), dict.fromkeys("abcd", 0.0), [], 0.0
    for arrival, (client, learned) in enumerate(stream, 1):
        last[str(client)] = start[str(client)] + learned
        if arrival % buffer == 0:
            model = sum(last.values()) / 4
            expected.append(model)
        start[str(client)] = model
    got = steps(AREA(buffer), stream, "abcd")
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(blocks(4, most=1))
@settings(max_examples=20, deadline=None)
def test_all_clients_once_from_one_model_is_fedavg(stream: Stream) -> None:
    mean = sum(value for _, value in stream) / 4
    assert steps(AREA(4), stream, "abcd") == pytest.approx([mean])


def test_a_newcomer_leaves_the_mean_as_it_is() -> None:
    strategy = AREA(2)
    events: list[Event] = [sent("a", 3), sent("b", 6), Joined("d", {"x": 1})]
    state = fed(strategy, begun(strategy, ABC, 0), events)
    assert state.model.tolist() == [3]
    # d starts from 3 and sends 7: (3 + 6 + 0 + 7)/4, and c sends 0 again.
    assert fed(strategy, state, [sent("d", 7), sent("c", 0)]).model.tolist() == [4]


def test_a_leaver_goes_from_the_mean() -> None:
    strategy = AREA(2)
    state = fed(strategy, begun(strategy, ABC, 0), [sent("a", 3), sent("b", 6), Left("b")])
    assert fed(strategy, state, [sent("a", 3), sent("c", 1)]).model.tolist() == [2]


def test_rounding_does_not_move_the_model_away_from_the_mean() -> None:
    server = Server(AREA(4))
    server.run(2000)
    state = server.state
    assert isinstance(state, AREAState)
    mean = np.mean(list(state.memory.values()), axis=0, dtype=float)
    assert server.state.model == pytest.approx(mean, rel=1e-5, abs=1e-5)
