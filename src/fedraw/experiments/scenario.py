"""One seed of an experiment, ready to run: its clients, strategy, training and arrival law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import far_above_median, rarity_scores
from fedraw.core.types import ClientId, Vector
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiments.clients import Clients, Partition, draw_clients
from fedraw.experiments.source import Where
from fedraw.experiments.spec import Spec, spec_settings_of
from fedraw.experiments.training import Network, make_network
from fedraw.simulation.arrivals import ArrivalLaw, Fixed, Recorded, jitter, poisson, read_trace
from fedraw.simulation.executors.base import Executor
from fedraw.simulation.loop import HandOut, Scheduled, Simulation
from fedraw.strategies.catalog import name_of
from fedraw.strategies.protocol import Declared, Setup, Strategy

if TYPE_CHECKING:
    from fedraw.learning.local_sgd import Trainer
    from fedraw.learning.models import ModelFactory


@dataclass(frozen=True)
class Parts:
    """What a user brings in Python instead of naming it in the spec."""

    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None = None
    partition: Partition | None = None
    model: ModelFactory | None = None
    strategy: Strategy[Any] | None = None


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything one seed of an experiment needs."""

    spec: Spec
    seed: int
    clients: Clients
    strategy: Strategy[Any]
    network: Network | None  # None: training-free
    parts: Parts = Parts()

    @classmethod
    def of(
        cls,
        spec: Spec,
        seed: int,
        parts: Parts | None = None,
        where: Where | None = None,
    ) -> Scenario:
        parts, where = parts or Parts(), where or Where()
        streams = Streams(seed)
        clients = draw_clients(spec, streams, parts.data, parts.partition, where)
        network = None
        if spec.training.kind != "none":
            refuse_no_images(clients.dataset)
            shape, classes = clients.dataset.input_shape, clients.dataset.classes
            network = make_network(spec, parts.model, shape, classes, streams, where.root)
        strategy = parts.strategy or spec.make_strategy()
        return cls(spec, seed, clients, strategy, network, parts)

    @property
    def trainer(self) -> Trainer | None:
        return None if self.network is None else self.network.trainer

    @property
    def initial(self) -> Vector:
        return np.zeros(0, np.float32) if self.network is None else self.network.initial

    @property
    def notes(self) -> tuple[str, ...]:
        """What every result has to say: how the data differ from the release, what was loaded."""
        loaded = None if self.network is None else self.network.loaded
        return self.clients.dataset.notes + (() if loaded is None else (str(loaded),))

    def tables(self) -> dict[str, Any]:
        """The spec as it was run, with the names of what the user brought in Python."""
        tables, own = self.spec.tables(), self.parts
        if own.data is not None:
            tables["data"] = {"name": self.clients.dataset.name}
        if own.partition is not None:
            tables["partition"] = {
                "kind": _name(own.partition),
                "clients": len(self.clients.table),
                "local_test": self.spec.partition.local_test,
            }
        if own.model is not None:
            tables["training"]["model"] = _name(own.model)
            tables["training"].pop("stem", None)
        if own.strategy is not None:
            settings = spec_settings_of(own.strategy)
            tables["strategy"] = {"name": name_of(own.strategy), **settings}
        return tables

    def simulation(self, executor: Executor) -> Simulation:
        """The federation at time zero."""
        streams, run, claimed = Streams(self.seed), self.spec.run, self.clients.claimed
        first = _rare(claimed) if run.receivers == "rare-first" else ()
        layout = None if self.trainer is None else self.trainer.layout
        classes, local_lr = self.clients.dataset.label_names, self.spec.training.lr
        return Simulation(
            self.strategy,
            Setup(self.initial, claimed, layout, classes, local_lr),
            _law(self.spec, self.clients, streams),
            executor,
            HandOut(run.concurrency, first, streams.generator("receivers")),
            [] if self.drift is None else [self.drift],
        )

    @cached_property
    def drift(self) -> Scheduled | None:
        """The arrival after which clients' data change, and the new counts that they declare.

        Computed once, because the run asks for it after every event.
        """
        wanted = self.spec.drift
        if wanted is None:
            return None
        declared: list[Declared] = []
        if wanted.declared == "again":
            before, after = (epoch.table.counts() for epoch in self.clients.epochs)
            declared = [Declared(c, own) for c, own in after.items() if own != before[c]]
        return Scheduled(max(1, round(wanted.at * self.spec.run.events)), declared)


def refuse_no_images(dataset: Dataset) -> None:
    if not dataset.has_images:
        raise BadInput(
            f"dataset {dataset.name!r} has labels and no images, so there is nothing to train on; "
            "set training.kind = 'none', or name a dataset with images"
        )


def _name(thing: object) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__)).lower()


def _rare(table: LabelTable) -> list[ClientId]:
    """Those whose score is far above the usual, as far as the server can know."""
    pairs = zip(table.clients, far_above_median(rarity_scores(table)), strict=True)
    return [client for client, rare in pairs if rare]


def _law(spec: Spec, clients: Clients, streams: Streams) -> ArrivalLaw:
    match spec.speeds.arrivals:
        case "fixed":
            return Fixed(clients.seconds)
        case "jitter":
            assert spec.speeds.jitter is not None  # SpeedsSpec has a default for this law
            return jitter(clients.seconds, streams, spec.speeds.jitter)
        case "recorded":
            return Recorded(clients.table.clients, read_trace(Path(spec.speeds.trace or "")))
        case _:
            return poisson(clients.seconds, streams)
