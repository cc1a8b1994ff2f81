"""A strategy that takes differences for plain vectors never meets a model with batch norm."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.strategies.server import COUNTS, MODEL, NORMED
from torch import nn

import fedraw
from fedraw.core.federation import Federation
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.server.opening import open_federation
from fedraw.server.settings import Settings
from fedraw.simulation.arrivals import Fixed
from fedraw.simulation.executors import Inline, Job, Trained
from fedraw.simulation.loop import Setup
from fedraw.strategies.strategy import Contents, Event, Receivers, change_members, check


@dataclass(eq=False)
class MomentumState:
    model: Vector
    federation: Federation
    velocity: Vector
    version: int = 0
    buffer: list[fedraw.Update] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents, init=False)


@dataclass(frozen=True)
class RareMomentum:
    """FedBuff with rarity weights and server momentum, as a user writes it."""

    buffer: int = 3
    momentum: float = 0.5

    @property
    def request(self) -> fedraw.Request:
        return fedraw.Request(sends="delta")

    def start(self, model: Vector, clients: fedraw.LabelTable) -> tuple[MomentumState, Receivers]:
        first = np.array(model, np.float32)
        return MomentumState(first, Federation.of(clients), np.zeros_like(first)), clients.clients

    def step(self, state: MomentumState, event: Event) -> tuple[MomentumState, Receivers]:
        if not isinstance(event, fedraw.Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        state.buffer = [*state.buffer, event.update]
        if len(state.buffer) == self.buffer:
            scores = state.federation.scores([update.client for update in state.buffer])
            vectors = [update.vector for update in state.buffer]
            mean = np.average(vectors, axis=0, weights=scores).astype(np.float32)
            state.velocity = self.momentum * state.velocity + mean
            state.model = (state.model + state.velocity).astype(np.float32)
            state.version, state.buffer = state.version + 1, []
        return state, [event.update.client]


@dataclass(frozen=True)
class WithStatistics(RareMomentum):
    """The same with statistics handled: averaged, without momentum."""

    layout: fedraw.Layout | None = None

    @property
    def request(self) -> fedraw.Request:
        return fedraw.Request(sends="delta", separates_statistics=self.layout is not None)

    def step(self, state: MomentumState, event: Event) -> tuple[MomentumState, Receivers]:
        heard = [*state.buffer, event.update] if isinstance(event, fedraw.Arrived) else []
        state, receivers = super().step(state, event)
        if self.layout is not None and len(heard) == self.buffer:
            statistics = self.layout.statistics
            state.model[statistics] = np.mean([u.vector[statistics] for u in heard], axis=0)
            state.velocity[statistics] = 0
        return state, receivers


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    flat = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(flat), nn.Linear(flat, classes))


SPEC: dict[str, Any] = {
    "partition": {"clients": 6, "clients_per_common_label": 4, "rare_labels": [9]},
    "run": {"events": 12, "seeds": [1]},
}
TOLD = (
    r"asks clients for differences.*128 batch-norm statistics.*"
    r"Request\(sends='delta', separates_statistics=True\)"
)


def test_a_run_with_batch_norm_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"RareMomentum {TOLD}"):
        spec = fedraw.Spec.read(SPEC)
        fedraw.run(spec, out=tmp_path / "run", model=normed, strategy=RareMomentum())
    assert not (tmp_path / "run").exists()


class Misspelt(RareMomentum):
    @property
    def request(self) -> fedraw.Request:
        return fedraw.Request(sends="difference")  # type: ignore[arg-type]


def test_a_request_that_nobody_understands_is_refused(tmp_path: Path) -> None:
    told = "Misspelt: Request.sends = 'difference' is unknown; known: model, delta"
    with pytest.raises(BadInput, match=told):
        fedraw.run(fedraw.Spec.read(SPEC), strategy=Misspelt())
    settings = Settings(folder=tmp_path / "federation", min_clients=6, arrivals=10)
    with pytest.raises(BadInput, match=told):
        open_federation(Misspelt(), lambda: MODEL, settings, NORMED)


def test_the_same_strategy_runs_where_there_are_no_statistics() -> None:
    (result,) = fedraw.run(fedraw.Spec.read(SPEC), strategy=RareMomentum())
    assert (result.summary["events"], result.summary["rejected"]) == (12, {})


def test_a_strategy_that_separates_statistics_runs_with_batch_norm() -> None:
    spec = fedraw.Spec.read(SPEC)
    (result,) = fedraw.run(spec, model=normed, strategy=WithStatistics())
    variances = result.model[-64:]
    assert (result.summary["events"], result.summary["rejected"]) == (12, {})
    assert np.all(variances > 0) and np.all(variances < 30)


@pytest.mark.parametrize(
    "strategy", [RareMomentum(), fedraw.FedBuff(3), fedraw.CA2FL(3), fedraw.Replay(3)]
)
def test_no_driver_takes_a_strategy_that_does_not_know_of_the_statistics(
    strategy: Any, tmp_path: Path
) -> None:
    """The built-in ones do, once they have the layout; both drivers are given the model's."""
    table = fedraw.LabelTable.from_counts(COUNTS)
    executor = Inline(lambda job: Trained(job.model, 1))
    told = r"asks clients for differences.*2 batch-norm statistics"
    with pytest.raises(BadInput, match=told):
        fedraw.Simulation(strategy, Setup(MODEL, table, NORMED), Fixed(np.ones(6)), executor)
    settings = Settings(folder=tmp_path / "federation", min_clients=6, arrivals=10)
    with pytest.raises(BadInput, match=told):
        open_federation(strategy, lambda: MODEL, settings, NORMED)
    assert not settings.folder.exists()


@pytest.mark.parametrize("kind", [fedraw.FedBuff, fedraw.CA2FL, fedraw.Replay])
def test_a_built_in_method_with_the_layout_is_taken(kind: Any) -> None:
    def train(job: Job) -> Trained:
        return Trained(job.model + np.float32(1), 1)

    table = fedraw.LabelTable.from_counts(COUNTS)
    strategy = kind(2, layout=NORMED)
    setup = Setup(MODEL, table, NORMED)
    simulation = fedraw.Simulation(strategy, setup, Fixed(np.ones(6)), Inline(train))
    simulation.step()
    assert simulation.step().aggregated
    # Parameters move by the mean difference of 1, statistics become what the clients have.
    assert simulation.state.model == pytest.approx(MODEL + 1)
