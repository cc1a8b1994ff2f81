"""How clients train: the network that a spec names, local training, and the executor of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.types import Ints, Vector
from fedraw.data.dataset import Images, Pixels
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiment.clients import LocalData, shared
from fedraw.experiment.loading import weights_file
from fedraw.experiment.options import Options
from fedraw.experiment.spec import Spec
from fedraw.simulation.executors.base import Executor, Job, Train, TrainingResult
from fedraw.simulation.executors.inline import (
    Batched,
    Inline,
    TrainTogether,
    no_training,
    slots_for,
)
from fedraw.simulation.executors.processes import Processes
from fedraw.simulation.executors.ray_cluster import cpus_of_cluster
from fedraw.simulation.executors.ray_workers import RayWorkers
from fedraw.simulation.perturbations.attacks import Attackers, Support
from fedraw.strategies.protocol import Needs

if TYPE_CHECKING:
    from fedraw.experiment.scenario import Scenario
    from fedraw.learning.batched import BatchedTrainer
    from fedraw.learning.inputs import Normalisation
    from fedraw.learning.models import ModelFactory, Module
    from fedraw.learning.training import Trainer
    from fedraw.learning.weights import LoadedWeights


@dataclass(frozen=True, eq=False)
class Network:
    """A trainer, the initial model, and the weights that it was loaded from."""

    trainer: Trainer
    initial: Vector
    loaded: LoadedWeights | None = None


def make_network(
    spec: Spec,
    model: ModelFactory | None,
    input_shape: tuple[int, ...],
    classes: int,
    streams: Streams,
    root: Path | None = None,
) -> Network:
    """Make the spec's model, or the user's, with the spec's weights or random ones."""
    try:
        from fedraw.learning import vectors, weights
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    module = _module(spec, model, input_shape, classes, streams)
    wanted = spec.training.weights
    loaded = None if wanted is None else weights.load_weights(module, weights_file(wanted, root))
    return Network(_trainer(spec, module), vectors.to_vector(module), loaded)


def _module(
    spec: Spec,
    model: ModelFactory | None,
    input_shape: tuple[int, ...],
    classes: int,
    streams: Streams,
) -> Module:
    from fedraw.learning import models

    rng = streams.generator("initial model")
    if model is not None:  # in place of the spec's model and stem
        return models.build(model, input_shape, classes, rng)
    wanted = spec.training
    return models.build(wanted.model, input_shape, classes, rng, stem=wanted.stem)


def _trainer(spec: Spec, module: Module) -> Trainer:
    from fedraw.learning.training import SGD, Trainer

    wanted = spec.training
    settings = SGD(wanted.epochs, wanted.batch, wanted.lr, wanted.momentum, wanted.weight_decay)
    return Trainer(module, settings, device=wanted.device, normalisation=_normalisation(spec))


def _normalisation(spec: Spec) -> Normalisation | None:
    from fedraw.learning.inputs import NORMALISATIONS

    # Features are computed from normalised pixels, and are not normalised themselves.
    return NORMALISATIONS[spec.data.normalise] if spec.features is None else None


@dataclass(frozen=True, eq=False)
class Recipe:
    """Everything a worker process needs to train as this process would."""

    spec: Spec
    model: ModelFactory | None
    data: LocalData
    streams: Streams
    needs: Needs

    def __str__(self) -> str:
        """The name of the model, the only part that a worker may fail to load."""
        if self.model is None:
            return f"model {self.spec.training.model!r}"
        name = getattr(self.model, "__qualname__", type(self.model).__qualname__)
        return f"model {self.model.__module__}.{name}"

    def __call__(self) -> Train:
        shape, classes = self.data.images.shape[1:], self.data.classes
        # Every job brings its weights, so none are read here.
        trainer = _trainer(self.spec, _module(self.spec, self.model, shape, classes, self.streams))
        return local_training(trainer, self)


def local_training(trainer: Trainer, recipe: Recipe) -> Train:
    """Local SGD on a client's own samples, and the loss before it if the strategy needs it."""
    try:
        together = stacked_training(trainer, recipe)
    except BadInput:  # not a network of linear layers, or not on the cpu
        return _any_training(trainer, recipe)
    return lambda job: together([job])[0]


def _any_training(trainer: Trainer, recipe: Recipe) -> Train:
    data, streams, needs = recipe.data, recipe.streams, recipe.needs

    def train(job: Job) -> TrainingResult:
        number, rows = data.of_job(job)
        images, labels = data.images[rows], data.labels[rows]
        loss = trainer.mean_loss(job.model, images, labels) if needs.loss else None
        rng = streams.generator("batches", number, job.training)
        vector = trainer.train(job.model, images, labels, rng, needs.proximal)
        return TrainingResult(vector, len(labels), loss)

    return train


def stacked_training(trainer: Trainer, recipe: Recipe) -> TrainTogether:
    """Local SGD of many clients in one call, for networks of linear layers; same bits."""
    from fedraw.learning.batched import BatchedClient

    data, streams, needs = recipe.data, recipe.streams, recipe.needs
    stacked = _stacked_trainer(trainer, recipe)

    def train(jobs: Sequence[Job]) -> list[TrainingResult]:
        clients = []
        for job in jobs:
            number, rows = data.of_job(job)
            rng = streams.generator("batches", number, job.training)
            clients.append(BatchedClient(job.model, rows, rng))
        trained = []
        for job, own, vector in zip(
            jobs, clients, stacked.train(clients, needs.proximal), strict=True
        ):
            rows, loss = own.rows, None
            if needs.loss:
                loss = trainer.mean_loss(job.model, data.images[rows], data.labels[rows])
            trained.append(TrainingResult(vector, rows.stop - rows.start, loss))
        return trained

    return train


def _stacked_trainer(trainer: Trainer, recipe: Recipe) -> BatchedTrainer:
    from fedraw.learning.batched import BatchedTrainer, ClientSamples, dense_layers

    spec, data = recipe.spec, recipe.data
    if spec.training.device != "cpu":
        raise BadInput(
            f"training.device = {spec.training.device!r}, and the batched executor trains on the "
            "cpu; use --executor inline"
        )
    images = data.images
    shape = images.shape[1:]
    dense_layers(trainer.module, trainer.layout, shape)  # refuses others before data are copied
    read: Callable[[Ints], Pixels] = images.take
    if not images.in_a_file:
        # A copy in the clients' order, because a selection would look up its rows at every step.
        read = partial(images[:].take, axis=0)
    samples = ClientSamples(read, data.labels, shape, int(np.diff(data.start).max()))
    return BatchedTrainer(trainer.module, trainer.settings, samples, _normalisation(spec))


@contextmanager
def executor_of(scenario: Scenario, options: Options) -> Iterator[Executor]:
    """The executor of one run, wrapped by the spec's attack; its workers end with the run."""
    with _executor(scenario, options) as executor:
        claim, layout = scenario.spec.misreport, scenario.setup.layout
        if claim is None or claim.support is None or layout is None:
            yield executor
            return
        (output,) = scenario.clients.dataset.label_indices([claim.label])
        support = Support(output, claim.support, layout)
        yield Attackers(executor, scenario.clients.attackers, support)


@contextmanager
def _executor(scenario: Scenario, options: Options) -> Iterator[Executor]:
    trainer, size = scenario.trainer, scenario.setup.model.size
    if trainer is None:
        yield Inline(no_training([epoch.table.totals() for epoch in scenario.clients.epochs]))
        return
    data, streams = LocalData.of(scenario.clients), Streams(scenario.seed)
    recipe = Recipe(scenario.spec, scenario.parts.model, data, streams, scenario.strategy.needs)
    if options.executor == "inline":
        yield Inline(local_training(trainer, recipe))
    elif options.executor == "batched":
        yield Batched(stacked_training(trainer, recipe), slots_for(size))
    elif options.executor == "processes":
        with shared(data) as in_shared_memory:
            recipe = replace(recipe, data=in_shared_memory)
            with closing(Processes(recipe, size, options.workers)) as processes:
                yield processes
    else:
        # Other machines have no file of this one, so the images themselves are sent.
        recipe = replace(recipe, data=replace(data, images_in=Images(data.images[:])))
        with (
            options.connected(),
            closing(RayWorkers(recipe, options.workers or cpus_of_cluster())) as ray_workers,
        ):
            yield ray_workers
