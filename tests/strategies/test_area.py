"""AREA: the mean of everyone's last model, with the memory on the clients or on the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.engine import Engine
from tests.strategies.server import COUNTS, MODEL, NORMED, Server, begun, fed, sent
from tests.strategies.streams import STREAM, Stream, blocks, steps, streams

import fedraw
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import Fixed
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.strategies.area import AREA
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Event, Joined, Left, Needs

either = pytest.mark.parametrize("memory", ["clients", "server"])
ABC = {client: {"x": 1} for client in "abc"}


@either
@pytest.mark.parametrize(("buffer", "models"), [(1, [1, 3, 16 / 3, 13 / 3]), (2, [3, 4])])
def test_the_stream_of_three_clients(memory: Any, buffer: int, models: list[float]) -> None:
    assert steps(AREA(buffer, memory), STREAM) == pytest.approx(models)


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
    """Whoever keeps the memory, and however often a client is in the buffer."""
    last, start, expected, model = dict.fromkeys("abcd", 0.0), dict.fromkeys("abcd", 0.0), [], 0.0
    for arrival, (client, learned) in enumerate(stream, 1):
        last[str(client)] = start[str(client)] + learned
        if arrival % buffer == 0:
            model = sum(last.values()) / 4
            expected.append(model)
        start[str(client)] = model
    for memory in ("clients", "server"):
        got = steps(AREA(buffer, memory), stream, "abcd")
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(blocks(4, most=1))
@settings(max_examples=20, deadline=None)
def test_all_clients_once_from_one_model_is_fedavg(stream: Stream) -> None:
    mean = sum(value for _, value in stream) / 4
    assert steps(AREA(4), stream, "abcd") == pytest.approx([mean])


@either
def test_a_newcomer_leaves_the_mean_as_it_is(memory: Any) -> None:
    strategy = AREA(2, memory)
    events: list[Event] = [sent("a", 3), sent("b", 6), Joined("d", {"x": 1})]
    state = fed(strategy, begun(strategy, ABC, 0), events)
    assert state.model.tolist() == [3]
    # d starts from 3 and sends 7: (3 + 6 + 0 + 7)/4, and c sends 0 again.
    new = 7 if memory == "server" else 7 - 3
    assert fed(strategy, state, [sent("d", new), sent("c", 0)]).model.tolist() == [4]


def test_a_leaver_goes_from_the_mean_if_the_server_knows_its_model() -> None:
    strategy = AREA(2, "server")
    state = fed(strategy, begun(strategy, ABC, 0), [sent("a", 3), sent("b", 6), Left("b")])
    assert fed(strategy, state, [sent("a", 3), sent("c", 1)]).model.tolist() == [2]


def test_otherwise_it_stays_there_as_a_client_that_is_never_heard_again() -> None:
    """Its place stays with it. Else the model would move on for ever although nobody learns."""
    strategy = AREA(1)
    state = fed(strategy, begun(strategy, ABC, 0), [sent("a", 3), sent("b", 6), Left("b")])
    assert state.model.tolist() == [3]
    last = {"a": 3.0, "c": 0.0}
    for turn in range(200):  # whoever is left sends back what it was handed
        client, model = "ac"[turn % 2], float(state.model[0])
        state = fed(strategy, state, [sent(client, model - last[client], version=state.version)])
        last[client] = model
    assert state.model == pytest.approx([6], rel=1e-3)  # what b sent, which nobody contradicts


def test_rounding_does_not_move_the_model_away_from_the_mean() -> None:
    server = Server(AREA(4))
    server.run(2000)
    mean = np.mean(list(server.remembered.values()), axis=0, dtype=float)
    assert server.state.model == pytest.approx(mean, rel=1e-5, abs=1e-5)


# The simulator keeps what each client has sent.


def of_numbers(strategy: Any, refuse: bool = False) -> Any:
    """Clients of unequal speed on a batch-norm model; each adds its own number everywhere."""

    def train(job: Job) -> TrainingResult:
        bad = refuse and job.client == 2 and job.training == 1
        return TrainingResult(job.model + np.float32(np.nan if bad else job.position), 1)

    setup = fedraw.Setup(MODEL, fedraw.LabelTable.from_counts(COUNTS), NORMED)
    return fedraw.Simulation(strategy, setup, Fixed(np.arange(1.0, 7.0)), Inline(train))


@pytest.mark.parametrize("refuse", [False, True])
def test_a_simulation_has_the_same_models_whoever_keeps_the_memory(refuse: bool) -> None:
    """Batch-norm statistics, too; a refused update does not become what was sent last."""
    models: list[list[Vector]] = []
    for memory in ("clients", "server"):
        simulation = of_numbers(AREA(3, memory), refuse)
        taken = []
        for _ in range(60):
            refused = simulation.step().refused
            taken.append(simulation.state.model)
            assert refused is None or refuse
        models.append(taken)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-5)
    assert not np.array_equal(models[0][-1], MODEL)


def test_what_a_client_has_sent_belongs_to_the_checkpoint(tmp_path: Path) -> None:
    from fedraw.simulation.loop import Timeline
    from fedraw.storage import snapshot

    one, other = of_numbers(AREA(3)), of_numbers(AREA(3))
    for _ in range(17):
        one.step()
    saved = one.save()
    snapshot.save(saved.timeline, tmp_path / "timeline")
    snapshot.save(saved.state, tmp_path / "state")
    again = type(saved)(
        snapshot.load(Timeline, tmp_path / "timeline"),
        snapshot.load(type(saved.state), tmp_path / "state"),
        saved.receivers,
    )
    other.restore(again)
    for _ in range(30):
        assert one.step() == other.step()
    assert np.array_equal(one.state.model, other.state.model)


def test_a_server_refuses_sites_that_would_have_to_remember(tmp_path: Path) -> None:
    told = "AREA needs sites that remember .* such as AREA with memory = 'server'"
    with pytest.raises(BadInput, match=told):
        Engine(tmp_path / "federation", AREA(2))
    assert not (tmp_path / "federation").exists()
    engine = Engine(tmp_path / "federation", AREA(2, memory="server"))
    engine.accept(5)
    engine.restart()
    engine.accept(8)
    assert engine.coordinator._store.strategy_state.version == 4
    engine.coordinator._store.log.close()


def test_residuals_have_statistics_as_differences() -> None:
    assert Needs(sends="residual").statistics == "model"
    with pytest.raises(BadInput, match="a residual is a difference in every number"):
        Needs(sends="residual", statistics="mean")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffer": 0}, "buffer = 0 must be a whole number"),
        ({"memory": "disk"}, "memory = 'disk' is unknown; known: clients, server"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        AREA(**settings)
