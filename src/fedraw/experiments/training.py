"""How clients train: the network a spec names, on the samples a client holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedraw.core.randomness import Streams
from fedraw.core.types import Vector
from fedraw.errors import MissingExtra
from fedraw.experiments.local_data import LocalData
from fedraw.experiments.source import weights_file
from fedraw.experiments.spec import Spec
from fedraw.simulation.executor import Job, Train, Trained
from fedraw.strategies.strategy import Request

if TYPE_CHECKING:
    from fedraw.learning.local_sgd import Trainer
    from fedraw.learning.models import ModelFactory, Module
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
    return models.build(
        model or spec.training.model, input_shape, classes, rng, stem=spec.training.stem
    )


def _trainer(spec: Spec, module: Module) -> Trainer:
    from fedraw.learning.inputs import SCALES
    from fedraw.learning.local_sgd import LocalSGD, Trainer

    wanted = spec.training
    settings = LocalSGD(
        wanted.epochs, wanted.batch, wanted.lr, wanted.momentum, wanted.weight_decay
    )
    # Features were computed from normalised pixels; they are not normalised themselves.
    scale = SCALES[spec.data.normalise] if spec.features is None else None
    return Trainer(module, settings, device=wanted.device, scale=scale)


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
        # Weights come with every job, so none are read here.
        trainer = _trainer(self.spec, _module(self.spec, self.model, shape, classes, self.streams))
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
