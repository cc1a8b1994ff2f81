"""One seed of an experiment, ready to run: its clients, strategy, training and arrival law."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedraw.core.layout import Layout
from fedraw.core.randomness import Streams
from fedraw.core.types import Vector
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiments.clients import Clients, Partition, draw_clients
from fedraw.experiments.local_data import LocalData, shared
from fedraw.experiments.spec import Spec, settings_of
from fedraw.simulation.arrivals import ArrivalLaw, Fixed, Recorded, jitter, poisson, read_trace
from fedraw.simulation.executor import Executor, Inline, Job, Train, Trained, no_training
from fedraw.simulation.loop import Simulation
from fedraw.simulation.processes import Processes
from fedraw.strategies.strategy import Request, Strategy

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
    trainer: Trainer | None  # None: training-free
    initial: Vector
    parts: Parts = Parts()

    @classmethod
    def of(cls, spec: Spec, seed: int, parts: Parts | None = None) -> Scenario:
        parts = parts or Parts()
        streams = Streams(seed)
        clients = draw_clients(spec, streams, parts.data, parts.partition)
        trainer, initial, layout = None, np.zeros(0, np.float32), None
        if spec.training.kind != "none":
            refuse_no_images(clients.dataset)
            shape, classes = clients.dataset.input_shape, clients.dataset.classes
            trainer, initial = make_trainer(spec, parts.model, shape, classes, streams)
            layout = trainer.layout
        strategy = _with_layout(parts.strategy or spec.make_strategy(layout), layout)
        return cls(spec, seed, clients, strategy, trainer, initial, parts)

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
        if own.strategy is not None:
            tables["strategy"] = {"name": _name(own.strategy), **settings_of(own.strategy)}
        return tables

    def simulation(self, executor: Executor) -> Simulation:
        """The federation at time zero."""
        streams = Streams(self.seed)
        return Simulation(
            self.strategy,
            self.initial,
            self.clients.claimed,
            _law(self.spec, self.clients, streams),
            executor,
            concurrency=self.spec.run.concurrency,
            receivers=streams.generator("receivers"),
            layout=None if self.trainer is None else self.trainer.layout,
        )

    @contextmanager
    def executor(self, workers: int = 0) -> Iterator[Executor]:
        """Who trains: this process, or so many others."""
        if self.trainer is None:
            yield Inline(no_training(self.clients.table.totals()))
        elif not workers:
            yield Inline(local_training(self.trainer, *self._training(LocalData.of(self.clients))))
        else:
            with shared(LocalData.of(self.clients)) as data:
                recipe = Recipe(self.spec, self.parts.model, *self._training(data))
                with closing(Processes(recipe, self.initial.size, workers)) as processes:
                    yield processes

    def _training(self, data: LocalData) -> tuple[LocalData, Streams, Request]:
        return data, Streams(self.seed), self.strategy.request


def refuse_no_images(dataset: Dataset) -> None:
    if not dataset.has_images:
        raise BadInput(
            f"dataset {dataset.name!r} has labels and no images, so there is nothing to train on; "
            "set training.kind = 'none', or name a dataset with images"
        )


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a worker process comes to train as this one would."""

    spec: Spec
    model: ModelFactory | None
    data: LocalData
    streams: Streams
    request: Request

    def __call__(self) -> Train:
        shape, classes = self.data.images.shape[1:], self.data.classes
        trainer, _ = make_trainer(self.spec, self.model, shape, classes, self.streams)
        return local_training(trainer, self.data, self.streams, self.request)


def local_training(trainer: Trainer, data: LocalData, streams: Streams, request: Request) -> Train:
    """Local SGD on a client's own samples, and the loss before it if the strategy asks for it."""

    def train(job: Job) -> Trained:
        images, labels = data.of_client(job.position)
        loss = trainer.mean_loss(job.model, images, labels) if request.loss else None
        rng = streams.generator("batches", job.position, job.training)
        vector = trainer.train(job.model, images, labels, rng, request.proximal)
        return Trained(vector, len(labels), loss)

    return train


def _with_layout(strategy: Strategy[Any], layout: Layout | None) -> Strategy[Any]:
    """A strategy that looks into vectors and was made without a layout gets the model's."""
    names: list[str] = [f.name for f in fields(strategy)] if is_dataclass(strategy) else []
    if "layout" not in names or vars(strategy)["layout"] is not None:
        return strategy
    with_it: Strategy[Any] = replace(strategy, layout=layout)  # type: ignore[type-var]
    return with_it


def _name(thing: object) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__)).lower()


def _law(spec: Spec, clients: Clients, streams: Streams) -> ArrivalLaw:
    match spec.speeds.arrivals:
        case "fixed":
            return Fixed(clients.seconds)
        case "jitter":
            spread = 0.2 if spec.speeds.jitter is None else spec.speeds.jitter
            return jitter(clients.seconds, streams, spread)
        case "recorded":
            return Recorded(clients.table.clients, read_trace(Path(spec.speeds.trace or "")))
        case _:
            return poisson(clients.seconds, streams)


def make_trainer(
    spec: Spec,
    model: ModelFactory | None,
    input_shape: tuple[int, ...],
    classes: int,
    streams: Streams,
) -> tuple[Trainer, Vector]:
    """A trainer for the spec's model, or the user's, and the initial model's vector."""
    try:
        from fedraw.learning import local_sgd, models, vectors
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    wanted = spec.training
    rng = streams.generator("initial model")
    module = models.build(model or wanted.model, input_shape, classes, rng)
    settings = local_sgd.LocalSGD(
        wanted.epochs, wanted.batch, wanted.lr, wanted.momentum, wanted.weight_decay
    )
    return local_sgd.Trainer(module, settings), vectors.to_vector(module)
