"""What a client does with the model it was handed: a few epochs of mini-batch SGD."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedraw.core.layout import Layout
from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.device import device_of, make_repeatable, seeded
from fedraw.learning.inputs import Images, Inputs, Pixels, Scale, pixels, tensor
from fedraw.learning.vectors import FlatModule

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LocalSGD:
    """v ← momentum · v + g + weight_decay · x;  x ← x − lr · v, with v = 0 at the start."""

    epochs: int = 1
    batch: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for key in ("epochs", "batch"):
            value = getattr(self, key)
            _require(isinstance(value, int) and value >= 1, key, value, "a whole number from 1")
        _require(0 < self.lr < math.inf, "lr", self.lr, "a number above 0")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        decay = self.weight_decay
        _require(0 <= decay < math.inf, "weight_decay", decay, "0 or a number above")


class Trainer:
    """Trains and evaluates vectors with one module, of which it keeps a private copy.

    What it returns depends on its arguments alone, never on what it did before, bit for bit on the
    cpu. For this it sets torch to one thread (with more, the bits change) and resets all hidden
    state. Vectors and images stay on the host; `device` is where the module lives and where each
    batch is brought. Images are float32, or uint8, which become 0..1; `scale` then applies to both.

    >>> trainer = Trainer(nn.Linear(1, 2), LocalSGD(epochs=20, lr=1.0))
    >>> images, labels = np.array([[-1], [1]], dtype=np.float32), np.array([0, 1])
    >>> start = np.zeros(trainer.layout.size, dtype=np.float32)
    >>> trained = trainer.train(start, images, labels, np.random.default_rng(0))
    >>> trainer.predict(trained, images)
    array([0, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        settings: LocalSGD,
        *,
        device: str = "cpu",
        scale: Scale | None = None,
    ) -> None:
        self.settings = settings
        self._device = device_of(device)
        make_repeatable(self._device)
        self._inputs = Inputs(self._device, scale)
        self._model = FlatModule(copy.deepcopy(module).train(), self._device)

    def __reduce__(self) -> NoReturn:
        # A pickled copy would lose the views that tie the module to its flat vector.
        raise TypeError("a Trainer cannot be pickled; make one in the process that uses it")

    @property
    def module(self) -> nn.Module:
        """To look at; its values are those of whatever was trained last."""
        return self._model.module

    @property
    def layout(self) -> Layout:
        return self._model.layout

    def train(
        self,
        start: Vector,
        images: Pixels,
        labels: Ints,
        rng: np.random.Generator,
        proximal: float = 0.0,
    ) -> Vector:
        """A new vector, `start` after some epochs on these samples; NaN is returned as it is.

        `proximal` = ρ adds ρ/2 · |x − start|² to the loss. The samples are shuffled in each epoch
        and the last, smaller mini-batch is kept. Dropout and the like draw from `rng` as well.
        """
        _require(len(images) > 0, "samples", 0, "1 or more")
        self._ready(start, training=True)
        with seeded(self._device, int(rng.integers(2**63))):
            try:
                self._descend(self._batches(images, labels, rng), proximal)
            except BadInput:
                raise
            except ValueError as error:
                self._explain(error, len(images))
                raise
        return self._model.vector()

    def mean_loss(self, vector: Vector, images: Images, labels: Ints) -> float:
        """Mean cross-entropy over all samples, in evaluation mode."""
        _require(len(images) > 0, "samples", 0, "1 or more")
        scores = torch.cat(self._scores(vector, images))
        return functional.cross_entropy(scores, tensor(labels, np.int64)).item()

    def predict(self, vector: Vector, images: Images) -> Ints:
        """The most likely label of each image, in evaluation mode."""
        labels = [scores.argmax(dim=1).numpy() for scores in self._scores(vector, images)]
        return np.concatenate([np.empty(0, np.int64), *labels])

    def _ready(self, vector: Vector, *, training: bool) -> None:
        self._model.load(vector)
        if self._model.module.training is not training:
            self._model.module.train(training)

    def _batches(self, images: Pixels, labels: Ints, rng: np.random.Generator) -> Iterator[Batch]:
        size = min(self.settings.batch, len(images))  # torch takes no size beyond 64 bits
        for _ in range(self.settings.epochs):
            # One shuffled copy and views of it: quicker than gathering each mini-batch.
            order = rng.permutation(len(images))
            shuffled = self._inputs.batches(pixels(images.take(order, 0)), size)
            targets = tensor(labels.take(order), np.int64).to(self._device)
            yield from zip(shuffled, torch.split(targets, size), strict=True)

    def _descend(self, batches: Iterator[Batch], proximal: float) -> None:
        if proximal or self.settings.momentum or self.settings.weight_decay:
            self._descend_with_terms(batches, proximal)
            return
        module, parameters, lr = self._model.module, self._model.trainable, self.settings.lr
        for images, labels in batches:
            loss = functional.cross_entropy(module(images), labels)
            gradients = torch.autograd.grad(
                loss, parameters, allow_unused=True, materialize_grads=True
            )
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-lr)

    def _descend_with_terms(self, batches: Iterator[Batch], proximal: float) -> None:
        """All of it on one flat gradient, to which the terms are added."""
        module, x, grad = self._model.module, self._model.parameters, self._model.grad
        momentum, decay, lr = self.settings.momentum, self.settings.weight_decay, self.settings.lr
        start = x.clone() if proximal else x
        velocity = torch.zeros_like(grad) if momentum else grad
        for images, labels in batches:
            loss = functional.cross_entropy(module(images), labels)
            grad.zero_()
            torch.autograd.backward(loss)
            if decay:
                grad.add_(x, alpha=decay)
            if proximal:
                grad.add_(x - start, alpha=proximal)
            if momentum:
                velocity.mul_(momentum).add_(grad)
            x.add_(velocity, alpha=-lr)

    @torch.no_grad()
    def _scores(self, vector: Vector, images: Images) -> list[torch.Tensor]:
        self._ready(vector, training=False)
        return [self._model.module(chunk).cpu() for chunk in self._inputs.chunks(images)]

    def _explain(self, error: ValueError, samples: int) -> None:
        batch = self.settings.batch
        if (samples - 1) % batch == 0:
            raise BadInput(
                f"batch = {batch} leaves a mini-batch with one of the {samples} samples, and this "
                f"model cannot train on one; choose another batch size ({error})"
            ) from error


def _require(holds: bool, key: str, value: float, wanted: str) -> None:
    if not holds:
        raise BadInput(f"{key} = {value!r} is no way to train; it must be {wanted}")
