"""How clients train: the network a spec names, on the samples a client holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.types import Ints, Vector
from fedraw.data.dataset import Images, Pixels
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiments.clients import LocalData
from fedraw.experiments.source import weights_file
from fedraw.experiments.spec import Spec
from fedraw.simulation.executors import Job, Train, Trained, TrainTogether
from fedraw.strategies.protocol import Needs

if TYPE_CHECKING:
    from fedraw.learning.inputs import Scale
    from fedraw.learning.local_sgd import Trainer
    from fedraw.learning.models import ModelFactory, Module
    from fedraw.learning.stacked import StackedTrainer
    from fedraw.learning.weights import Loaded


@dataclass(frozen=True, eq=False)
class Network:
    """A trainer, and the model that every client is handed first."""

    trainer: Trainer
    initial: Vector
    loaded: Loaded | None = None


def make_network(
    spec: Spec,
    model: ModelFactory | None,
    input_shape: tuple[int, ...],
    classes: int,
    streams: Streams,
    root: Path | None = None,
) -> Network:
    """The spec's model, or the user's, with the spec's weights or fresh ones."""
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
    if model is not None:  # in the place of the spec's model, and of its stem
        return models.build(model, input_shape, classes, rng)
    wanted = spec.training
    return models.build(wanted.model, input_shape, classes, rng, stem=wanted.stem)


def _trainer(spec: Spec, module: Module) -> Trainer:
    from fedraw.learning.local_sgd import LocalSGD, Trainer

    wanted = spec.training
    settings = LocalSGD(
        wanted.epochs, wanted.batch, wanted.lr, wanted.momentum, wanted.weight_decay
    )
    return Trainer(module, settings, device=wanted.device, scale=_scale(spec))


def _scale(spec: Spec) -> Scale | None:
    from fedraw.learning.inputs import SCALES

    # Features were computed from normalised pixels; they are not normalised themselves.
    return SCALES[spec.data.normalise] if spec.features is None else None


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a worker process comes to train as this one would."""

    spec: Spec
    model: ModelFactory | None
    data: LocalData
    streams: Streams
    needs: Needs

    def __str__(self) -> str:
        """The model: all else that a worker may fail to load is fedraw's own."""
        if self.model is None:
            return f"model {self.spec.training.model!r}"
        name = getattr(self.model, "__qualname__", type(self.model).__qualname__)
        return f"model {self.model.__module__}.{name}"

    def __call__(self) -> Train:
        shape, classes = self.data.images.shape[1:], self.data.classes
        # Weights come with every job, so none are read here.
        trainer = _trainer(self.spec, _module(self.spec, self.model, shape, classes, self.streams))
        return local_training(trainer, self)


def local_training(trainer: Trainer, recipe: Recipe) -> Train:
    """Local SGD on a client's own samples, and the loss before it if the strategy asks for it."""
    try:
        together = stacked_training(trainer, recipe)
    except BadInput:  # not a network of linear layers, or not on the cpu
        return _any_training(trainer, recipe)
    return lambda job: together([job])[0]


def _any_training(trainer: Trainer, recipe: Recipe) -> Train:
    data, streams, needs = recipe.data, recipe.streams, recipe.needs

    def train(job: Job) -> Trained:
        number = data.number(job.position, job.epoch)
        images, labels = data.images[data.rows(number)], data.labels[data.rows(number)]
        loss = trainer.mean_loss(job.model, images, labels) if needs.loss else None
        rng = streams.generator("batches", number, job.training)
        vector = trainer.train(job.model, images, labels, rng, needs.proximal)
        return Trained(vector, len(labels), loss)

    return train


def stacked_training(trainer: Trainer, recipe: Recipe) -> TrainTogether:
    """The same for many clients in one call, with the same bits, for networks of linear layers."""
    from fedraw.learning.stacked import Client

    data, streams, needs = recipe.data, recipe.streams, recipe.needs
    stacked = _stacked_trainer(trainer, recipe)

    def train(jobs: Sequence[Job]) -> list[Trained]:
        clients = []
        for job in jobs:
            number = data.number(job.position, job.epoch)
            rng = streams.generator("batches", number, job.training)
            clients.append(Client(job.model, data.rows(number), rng))
        trained = []
        for job, own, vector in zip(
            jobs, clients, stacked.train(clients, needs.proximal), strict=True
        ):
            rows, loss = own.rows, None
            if needs.loss:
                loss = trainer.mean_loss(job.model, data.images[rows], data.labels[rows])
            trained.append(Trained(vector, rows.stop - rows.start, loss))
        return trained

    return train


def _stacked_trainer(trainer: Trainer, recipe: Recipe) -> StackedTrainer:
    from fedraw.learning.dense import dense_layers
    from fedraw.learning.stacked import Samples, StackedTrainer

    spec, data = recipe.spec, recipe.data
    if spec.training.device != "cpu":
        raise BadInput(
            f"training.device = {spec.training.device!r}, and the batched executor trains on the "
            "cpu; use --executor inline"
        )
    shape = data.images.shape[1:]
    dense_layers(trainer.module, trainer.layout, shape)  # refuses others before data are copied
    samples = Samples(_reader(data.images), data.labels, shape, int(np.diff(data.start).max()))
    return StackedTrainer(trainer.module, trainer.settings, samples, _scale(spec))


def _reader(images: Images) -> Callable[[Ints], Pixels]:
    if images.in_a_file:
        return images.take
    # One copy in the clients' order: rows of a selection would be looked up at every step.
    pixels = images[:]
    return lambda rows: pixels.take(rows, 0)
