"""Batch-norm statistics are never taken for differences, whoever wrote the strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.engine import Engine
from tests.strategies.server import COUNTS, MODEL, NORMED, On, begun, fed, sent
from torch import nn

import fedraw
from fedraw.core.federation import Federation
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.server.coordinator import open_federation
from fedraw.server.settings import ServerSettings
from fedraw.simulation.arrivals import Fixed
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.strategies.protocol import Contents, Event, Receivers, change_members, check


@dataclass(eq=False)
class OwnState:
    model: Vector
    federation: Federation
    version: int = 0
    buffer: list[fedraw.Update] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents, init=False)


@dataclass(frozen=True)
class OwnFedBuff:
    """FedBuff as a user writes it who has never heard of batch-norm statistics."""

    buffer: int = 3

    @property
    def needs(self) -> fedraw.Needs:
        return fedraw.Needs(sends="delta")

    def start(self, setup: fedraw.Setup) -> tuple[OwnState, Receivers]:
        return OwnState(setup.model, Federation.of(setup.clients)), setup.clients.clients

    def step(self, state: OwnState, event: Event) -> tuple[OwnState, Receivers]:
        if not isinstance(event, fedraw.Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        state.buffer = [*state.buffer, event.update]
        if len(state.buffer) == self.buffer:
            step = np.mean([self.sent(update) for update in state.buffer], axis=0, dtype=float)
            state.model = state.model + step.astype(np.float32)
            state.version, state.buffer = state.version + 1, []
        return state, [event.update.client]

    def sent(self, update: fedraw.Update) -> Vector:
        return update.parameters


class OwnFedBuffOfVectors(OwnFedBuff):
    """The same, with the other name under which an update gives its numbers."""

    def sent(self, update: fedraw.Update) -> Vector:
        return update.vector


def conv_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A convolution with batch norm, for the 8 x 8 images of the digits."""
    layers: list[nn.Module] = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


SPEC: dict[str, Any] = {
    "partition": {"clients": 6, "clients_per_common_label": 4, "rare_labels": [9]},
    "run": {"events": 60, "seeds": [1], "evaluate_every": 60},
}


@pytest.mark.parametrize("own", [OwnFedBuff(), OwnFedBuffOfVectors()])
def test_a_users_fedbuff_on_a_batch_norm_net_is_the_built_in_one(own: Any) -> None:
    spec = fedraw.Spec.from_dict(SPEC)
    (ours,) = fedraw.simulate(spec, model=conv_net, strategy=fedraw.FedBuff(3))
    (theirs,) = fedraw.simulate(spec, model=conv_net, strategy=own)
    assert theirs.model == pytest.approx(ours.model, rel=1e-5, abs=1e-6)
    assert theirs.summary["metrics"]["GlobalAcc"] == pytest.approx(
        ours.summary["metrics"]["GlobalAcc"], abs=1
    )
    assert ours.summary["metrics"]["GlobalAcc"] > 30
    variances = theirs.model[-4:]
    assert np.all(variances > 0) and np.all(variances < 30)


def test_a_server_averages_statistics_too_and_so_it_does_after_a_restart(tmp_path: Path) -> None:
    models = []
    for name, strategy in (("ours", fedraw.FedBuff(3)), ("theirs", OwnFedBuff())):
        engine = Engine(tmp_path / name, strategy, layout=NORMED)
        engine.accept(7)
        engine.restart()
        engine.accept(4)
        models.append(engine.coordinator._store.strategy_state.model)
        engine.coordinator._store.log.close()
    assert models[1] == pytest.approx(models[0])
    assert models[0].size == NORMED.size and models[0][3:].any()


def test_the_statistics_of_a_version_are_the_mean_of_those_since_the_last_one() -> None:
    strategy = On(NORMED, OwnFedBuff(2))
    state = begun(strategy, COUNTS, *MODEL)
    state = fed(strategy, state, [sent(0, 1, 0, 0, 5, 7), sent(0, 1, 2, 0, 7, 8)])
    assert state.model == pytest.approx([2, 0, 0.5, 6, 7.5])
    state = fed(strategy, state, [sent(1, 0, 0, 0, 1, 1), sent(2, 0, 0, 0, 1, 2)])
    assert state.model[3:] == pytest.approx([1, 1.5])


def test_a_round_that_a_leaver_closes_has_statistics_too() -> None:
    strategy = On(NORMED, fedraw.QFedAvg(lr=0.1, q=0))
    counts = {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}
    state = begun(strategy, counts, *MODEL)
    events: list[Event] = [
        sent("a", 0, 0, 0, 4, 8, examples=1, loss=1.0),
        sent("b", 0, 0, 0, 8, 4, examples=3, loss=1.0),
        fedraw.Left("c"),
    ]
    state = fed(strategy, state, events)
    assert (state.version, state.model[3:].tolist()) == (1, [7, 5])


def test_differences_with_statistics_as_a_part_of_the_model_are_refused() -> None:
    with pytest.raises(BadInput, match="statistics as they are, never as differences"):
        fedraw.Needs(sends="delta", statistics="model")
    with pytest.raises(BadInput, match="statistics = 'median' is unknown"):
        fedraw.Needs(statistics="median")  # type: ignore[arg-type]


class Misspelt(OwnFedBuff):
    @property
    def needs(self) -> fedraw.Needs:
        return fedraw.Needs(sends="difference")  # type: ignore[arg-type]


def test_needs_that_nobody_understands_are_refused(tmp_path: Path) -> None:
    told = "Needs.sends = 'difference' is unknown; known: model, delta"
    with pytest.raises(BadInput, match=told):
        fedraw.simulate(fedraw.Spec.from_dict(SPEC), out=tmp_path / "run", strategy=Misspelt())
    assert not (tmp_path / "run").exists()
    settings = ServerSettings(folder=tmp_path / "federation", min_clients=6, arrivals=10)
    with pytest.raises(BadInput, match=told):
        open_federation(Misspelt(), lambda: MODEL, settings, NORMED)
    assert not settings.folder.exists()


@pytest.mark.parametrize("kind", [fedraw.FedBuff, fedraw.CA2FL, fedraw.Replay, OwnFedBuff])
def test_parameters_move_by_differences_and_statistics_are_replaced(kind: Any) -> None:
    def train(job: Job) -> TrainingResult:
        return TrainingResult(job.model + np.float32(1), 1)

    table = fedraw.LabelTable.from_counts(COUNTS)
    setup = fedraw.Setup(MODEL, table, NORMED)
    simulation = fedraw.Simulation(kind(2), setup, Fixed(np.ones(6)), Inline(train))
    simulation.step()
    assert simulation.step().aggregated
    assert simulation.state.model == pytest.approx(MODEL + 1)


def test_an_update_gives_parameters_and_statistics_apart() -> None:
    update = fedraw.Update("a", 0, np.arange(5, dtype=np.float32), 1, statistics_size=2)
    assert update.parameters.tolist() == [0, 1, 2]
    assert update.statistics.tolist() == [3, 4]
    without = fedraw.Update("a", 0, update.vector, 1)
    assert without.parameters is without.vector
    assert without.statistics.size == 0


@dataclass(frozen=True)
class LastParameters:
    """A user's strategy: the parameters of the last model; its statistics are left alone."""

    @property
    def needs(self) -> fedraw.Needs:
        return fedraw.Needs()

    def start(self, setup: fedraw.Setup) -> tuple[OwnState, Receivers]:
        return OwnState(setup.model, Federation.of(setup.clients)), setup.clients.clients

    def step(self, state: OwnState, event: Event) -> tuple[OwnState, Receivers]:
        assert isinstance(event, fedraw.Arrived)
        statistics = state.model[-event.update.statistics.size :]
        state.model = np.concatenate([event.update.parameters, statistics])
        state.version += 1
        return state, [event.update.client]


def test_a_strategy_that_averages_models_sees_their_statistics() -> None:
    table = fedraw.LabelTable.from_counts(COUNTS)
    train = Inline(lambda job: TrainingResult(job.model + np.float32(1), 1))
    setup = fedraw.Setup(MODEL, table, NORMED)
    simulation = fedraw.Simulation(LastParameters(), setup, Fixed(np.ones(6)), train)
    simulation.step()
    assert simulation.state.model == pytest.approx([2, 0, 1.5, 0, 1])
