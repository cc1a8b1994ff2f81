"""One seed of an experiment, ready to run: its clients, strategy, training and arrival law."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import far_above_median, rarity_scores
from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.experiment.clients import Clients, Partition, draw_clients
from fedraw.experiment.loading import Data
from fedraw.experiment.options import DEFAULTS, Options
from fedraw.experiment.sections import DriftSpec
from fedraw.experiment.spec import Spec, spec_settings_of
from fedraw.experiment.training import make_network
from fedraw.simulation.arrivals import ArrivalLaw, Fixed, Recorded, jitter, poisson, read_trace
from fedraw.simulation.executors.base import Executor
from fedraw.simulation.loop import HandOut, Scheduled, Simulation
from fedraw.strategies.catalog import spec_name
from fedraw.strategies.protocol import Declared, Setup, Strategy

if TYPE_CHECKING:
    from fedraw.learning.models import ModelFactory
    from fedraw.learning.training import Trainer
    from fedraw.learning.weights import LoadedWeights


@dataclass(frozen=True)
class Parts:
    """What a user brings in Python instead of naming it in the spec."""

    data: Data | None = None
    partition: Partition | None = None
    model: ModelFactory | None = None
    strategy: Strategy[Any] | None = None


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything that one seed of an experiment needs.

    `trainer` is None in a training-free run. `loaded` says which weights the initial model was
    loaded from; it is None if the model was drawn. `drift` is the change of the clients' data.
    """

    spec: Spec
    seed: int
    clients: Clients
    strategy: Strategy[Any]
    setup: Setup
    trainer: Trainer | None = None
    loaded: LoadedWeights | None = None
    drift: Scheduled | None = None
    parts: Parts = Parts()

    @classmethod
    def of(
        cls, spec: Spec, seed: int, parts: Parts | None = None, options: Options = DEFAULTS
    ) -> Scenario:
        """Draw the clients, make the model and the strategy of one seed."""
        parts, streams = parts or Parts(), Streams(seed)
        clients = draw_clients(spec, streams, parts.data, parts.partition, options)
        dataset = clients.dataset
        trainer, loaded, layout = None, None, None
        model = np.zeros(0, np.float32)
        if spec.training.kind != "none":
            if not dataset.has_images:
                raise BadInput(
                    f"dataset {dataset.name!r} has labels and no images, so there is nothing to "
                    "train on; set training.kind = 'none', or name a dataset with images"
                )
            shape, classes = dataset.input_shape, dataset.classes
            network = make_network(spec, parts.model, shape, classes, streams, options.data_root)
            trainer, loaded, model = network.trainer, network.loaded, network.initial
            layout = trainer.layout
        strategy = parts.strategy or spec.make_strategy()
        setup = Setup(model, clients.claimed, layout, dataset.label_names, spec.training.lr)
        drift = None
        if spec.drift is not None:
            drift = _drift(spec.drift, spec.run.events, clients)
        return cls(spec, seed, clients, strategy, setup, trainer, loaded, drift, parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What every result has to say: how the data differ from the release, what was loaded."""
        return self.clients.dataset.notes + (() if self.loaded is None else (str(self.loaded),))

    def tables(self) -> dict[str, Any]:
        """The spec as run: only this seed, and the names of what the user brought in Python."""
        tables, own = self.spec.tables(), self.parts
        tables["run"]["seeds"] = [self.seed]
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
            tables["strategy"] = {"name": spec_name(own.strategy), **settings}
        return tables

    def simulation(self, executor: Executor) -> Simulation:
        """The federation at time zero."""
        streams, run = Streams(self.seed), self.spec.run
        first = _rare(self.setup.clients) if run.receivers == "rare-first" else ()
        return Simulation(
            self.strategy,
            self.setup,
            _law(self.spec, self.clients, streams),
            executor,
            HandOut(run.concurrency, first, streams.generator("receivers")),
            () if self.drift is None else (self.drift,),
        )


def _drift(wanted: DriftSpec, events: int, clients: Clients) -> Scheduled:
    """The arrival after which clients' data change, and the counts that they then declare."""
    declared: list[Declared] = []
    if wanted.declared == "again":
        before, after = (epoch.table.counts() for epoch in clients.epochs)
        declared = [Declared(c, own) for c, own in after.items() if own != before[c]]
    return Scheduled(max(1, round(wanted.at * events)), declared)


def _name(thing: object) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__)).lower()


def _rare(table: LabelTable) -> list[ClientId]:
    """The clients whose score is far above the median, by what the server knows."""
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
