"""Who trains the clients of a run: this process, other ones, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from fedraw.core.randomness import Streams
from fedraw.experiments.local_data import LocalData, shared
from fedraw.experiments.scenario import Scenario
from fedraw.experiments.training import Recipe, local_training
from fedraw.simulation.executor import Executor, Inline, no_training
from fedraw.simulation.processes import Processes


@dataclass(frozen=True)
class Crew:
    """inline: this process, one client after the other; processes: so many of this machine."""

    kind: Literal["inline", "processes"] = "inline"
    workers: int = 1  # unless inline

    @property
    def has_workers(self) -> bool:
        return self.kind != "inline"


@contextmanager
def executor_of(scenario: Scenario, crew: Crew | None = None) -> Iterator[Executor]:
    """An executor for one run; its workers are gone when the run is over."""
    crew = crew or Crew()
    if scenario.trainer is None:
        yield Inline(no_training(scenario.clients.table.totals()))
        return
    data, streams = LocalData.of(scenario.clients), Streams(scenario.seed)
    request = scenario.strategy.request
    if crew.kind == "inline":
        yield Inline(local_training(scenario.trainer, data, streams, request))
        return
    with shared(data) as data:
        recipe = Recipe(scenario.spec, scenario.parts.model, data, streams, request)
        with closing(Processes(recipe, scenario.initial.size, crew.workers)) as processes:
            yield processes
