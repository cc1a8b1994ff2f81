"""Who trains the clients of a run: this process, other ones, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

from fedraw.core.randomness import Streams
from fedraw.data.dataset import Images
from fedraw.experiments.clients import LocalData, shared
from fedraw.experiments.scenario import Scenario
from fedraw.experiments.training import Recipe, local_training, stacked_training
from fedraw.simulation.executors.base import Executor
from fedraw.simulation.executors.inline import Batched, Inline, no_training, slots_for
from fedraw.simulation.executors.processes import Processes
from fedraw.simulation.executors.ray_cluster import cluster, cpus_of_cluster
from fedraw.simulation.executors.ray_workers import RayWorkers
from fedraw.simulation.perturbations.attacks import Attackers, Support


@dataclass(frozen=True)
class Crew:
    """inline: this process, one client after the other; batched: this one, many clients at once;
    processes: so many of this machine; ray: so many of a cluster.
    """

    kind: Literal["inline", "batched", "processes", "ray"] = "inline"
    workers: int = 1  # unless inline or batched; with ray, 0: all CPUs of the cluster
    address: str | None = None  # of a Ray cluster; None: one that is started for the run

    @property
    def has_workers(self) -> bool:
        return self.kind not in ("inline", "batched")

    def gathered(self) -> AbstractContextManager[None]:
        """Connected to the cluster, if there is one; runs inside share the connection."""
        if self.kind != "ray":
            return nullcontext()
        return cluster(self.address, self.workers or None)


@contextmanager
def executor_of(scenario: Scenario, crew: Crew | None = None) -> Iterator[Executor]:
    """The executor of one run, with the attacks of the spec; its workers end with the run."""
    with _executor(scenario, crew or Crew()) as executor:
        claim, trainer = scenario.spec.misreport, scenario.trainer
        if claim is None or claim.support is None or trainer is None:
            yield executor
            return
        (output,) = scenario.clients.dataset.label_indices([claim.label])
        support = Support(output, claim.support, trainer.layout)
        yield Attackers(executor, scenario.clients.attackers, support)


@contextmanager
def _executor(scenario: Scenario, crew: Crew) -> Iterator[Executor]:
    if scenario.trainer is None:
        totals = [epoch.table.totals() for epoch in scenario.clients.epochs]
        yield Inline(no_training(totals))
        return
    data, streams = LocalData.of(scenario.clients), Streams(scenario.seed)
    recipe = Recipe(scenario.spec, scenario.parts.model, data, streams, scenario.strategy.needs)
    if crew.kind == "inline":
        yield Inline(local_training(scenario.trainer, recipe))
    elif crew.kind == "batched":
        yield Batched(stacked_training(scenario.trainer, recipe), slots_for(scenario.initial.size))
    elif crew.kind == "ray":
        recipe = replace(recipe, data=_by_content(data))
        with crew.gathered(), closing(RayWorkers(recipe, crew.workers or cpus_of_cluster())) as ray:
            yield ray
    else:
        with shared(data) as seen_by_all:
            recipe = replace(recipe, data=seen_by_all)
            with closing(Processes(recipe, scenario.initial.size, crew.workers)) as processes:
                yield processes


def _by_content(data: LocalData) -> LocalData:
    """With the images themselves: other machines have no file of this one."""
    return replace(data, images_in=Images(data.images[:]))
