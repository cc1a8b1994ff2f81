"""Local training and evaluation of one model, with mini-batch SGD on a client's data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedraw.core.layout import Layout
from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.device import device_of, make_repeatable, seeded
from fedraw.learning.inputs import (
    ImageSequence,
    Normalisation,
    Pixels,
    Preprocessor,
    input_tensor,
    tensor,
)
from fedraw.learning.sgd import SGD
from fedraw.learning.vectors import FlatModule

Batch = tuple[torch.Tensor, torch.Tensor]
# Computes the loss from a module's output and the labels of a mini-batch.
LossFunction = Callable[[Any, torch.Tensor], torch.Tensor]


class Trainer:
    """Trains and evaluates model vectors with a private copy of one module.

    The results depend only on the arguments of a call, never on earlier calls; on the CPU they are
    identical bit for bit. For this, the trainer sets torch and NumPy to one thread, because more
    change the bits, and resets all hidden state. Vectors and images stay on the host. The module is
    on `device`, and each mini-batch is copied there. Images are float32, or uint8, which is
    converted to 0..1; `normalisation` is then applied to both.

    >>> trainer = Trainer(nn.Linear(1, 2), SGD(epochs=20, lr=1.0))
    >>> images, labels = np.array([[-1], [1]], dtype=np.float32), np.array([0, 1])
    >>> start = np.zeros(trainer.layout.size, dtype=np.float32)
    >>> trained = trainer.train(start, images, labels, np.random.default_rng(0))
    >>> trainer.predict(trained, images)
    array([0, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        settings: SGD,
        *,
        device: str = "cpu",
        normalisation: Normalisation | None = None,
    ) -> None:
        self.settings = settings
        self._device = device_of(device)
        make_repeatable(self._device)
        self._preprocess = Preprocessor(self._device, normalisation)
        self._model = FlatModule(copy.deepcopy(module).train(), self._device)

    def __reduce__(self) -> NoReturn:
        # A pickled copy would lose the views that tie the module to its flat vector.
        raise TypeError("a Trainer cannot be pickled; create one in the process that uses it")

    @property
    def module(self) -> nn.Module:
        """The module, for inspection; its values are those of the last training or evaluation."""
        return self._model.module

    @property
    def layout(self) -> Layout:
        """The positions of the module's tensors in a model vector."""
        return self._model.layout

    def train(
        self,
        start: Vector,
        images: Pixels,
        labels: Ints,
        rng: np.random.Generator,
        proximal: float = 0.0,
        lr: float | None = None,
        shift: Vector | None = None,
    ) -> Vector:
        """Train the model `start` on these samples and return it as a new vector.

        `proximal` = ρ adds ρ/2 · |x − start|² to the loss. `lr` replaces the learning rate of the
        settings. `shift` is added to the scores of the labels before the cross-entropy; see
        `SGD.shift`. Shuffling, dropout and other random operations use `rng`. A training that
        diverges returns NaN.
        """
        require_samples(len(images))
        self._load(start, training=True)
        lr = self.settings.lr if lr is None else lr
        with seeded(self._device, int(rng.integers(2**63))):
            try:
                self._descend(self._batches(images, labels, rng), self._loss(shift), proximal, lr)
            except BadInput:
                raise
            except ValueError as error:
                self._explain_lone_sample(error, len(images))
                raise
        return self._model.vector()

    def refuse_lone_samples(self, sizes: Ints, sample: Pixels) -> None:
        """Refuse clients whose last mini-batch is a single sample, if the model needs more.

        `sizes` are the clients' numbers of samples. Most models train on a single sample, but a
        model with batch norm may not. The forward pass of `sample`, an array of one sample, shows
        it.
        """
        lone = sizes[(sizes == 1) | ((sizes - 1) % self.settings.batch == 0)]
        if not lone.size:
            return
        module = copy.deepcopy(self._model.module).train()
        with seeded(self._device, 0), torch.no_grad():
            try:
                module(next(iter(self._preprocess.batches(input_tensor(sample), 1))))
            except BadInput:
                raise
            except ValueError as error:
                self._explain_lone_sample(error, int(lone[0]))
                raise

    def mean_loss(self, vector: Vector, images: ImageSequence, labels: Ints) -> float:
        """Return the mean plain cross-entropy over all samples, in evaluation mode."""
        require_samples(len(images))
        scores = torch.cat(self._scores(vector, images))
        return functional.cross_entropy(scores, tensor(labels, np.int64)).item()

    def predict(self, vector: Vector, images: ImageSequence) -> Ints:
        """Return the most likely label of each image, in evaluation mode."""
        labels = [scores.argmax(dim=1).numpy() for scores in self._scores(vector, images)]
        return np.concatenate([np.empty(0, np.int64), *labels])

    def outputs(self, vector: Vector, images: ImageSequence) -> npt.NDArray[np.float32]:
        """Return the output for each image, in evaluation mode."""
        return torch.cat(self._scores(vector, images)).float().numpy()

    def _load(self, vector: Vector, *, training: bool) -> None:
        self._model.load(vector)
        if self._model.module.training is not training:
            self._model.module.train(training)

    def _batches(self, images: Pixels, labels: Ints, rng: np.random.Generator) -> Iterator[Batch]:
        size = min(self.settings.batch, len(images))  # torch accepts no size above 64 bits
        for _ in range(self.settings.epochs):
            # One shuffled copy and views of it are faster than gathering each mini-batch.
            order = rng.permutation(len(images))
            shuffled = self._preprocess.batches(input_tensor(images.take(order, 0)), size)
            targets = tensor(labels.take(order), np.int64).to(self._device)
            yield from zip(shuffled, torch.split(targets, size), strict=True)

    def _loss(self, shift: Vector | None) -> LossFunction:
        """Return the training loss as a function of a model's output and labels."""
        smoothing = self.settings.label_smoothing
        if shift is None:
            return lambda output, labels: functional.cross_entropy(
                scores_of(output), labels, label_smoothing=smoothing
            )
        added = torch.from_numpy(shift).to(self._device)
        return lambda output, labels: functional.cross_entropy(scores_of(output) + added, labels)

    def _descend(
        self, batches: Iterator[Batch], loss_of: LossFunction, proximal: float, lr: float
    ) -> None:
        settings = self.settings
        if proximal or settings.momentum or settings.weight_decay or settings.clip_norm:
            self._descend_with_terms(batches, loss_of, proximal, lr)
            return
        module, parameters = self._model.module, self._model.trainable
        for images, labels in batches:
            gradients = torch.autograd.grad(
                loss_of(module(images), labels),
                parameters,
                allow_unused=True,
                materialize_grads=True,
            )
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-lr)

    def _descend_with_terms(
        self, batches: Iterator[Batch], loss_of: LossFunction, proximal: float, lr: float
    ) -> None:
        """Descend along one flat gradient, which is clipped or has further terms added."""
        module, x, grad = self._model.module, self._model.parameters, self._model.grad
        settings = self.settings
        momentum, decay, clip = settings.momentum, settings.weight_decay, settings.clip_norm
        start = x.clone() if proximal else x
        velocity = torch.zeros_like(grad) if momentum else grad
        for images, labels in batches:
            loss = loss_of(module(images), labels)
            grad.zero_()
            torch.autograd.backward(loss)
            if clip:
                grad.mul_(torch.clamp(clip / grad.norm(), max=1.0))
            if decay:
                grad.add_(x, alpha=decay)
            if proximal:
                grad.add_(x - start, alpha=proximal)
            if momentum:
                velocity.mul_(momentum).add_(grad)
            step = grad.add_(velocity, alpha=momentum) if settings.nesterov else velocity
            x.add_(step, alpha=-lr)

    @torch.no_grad()
    def _scores(self, vector: Vector, images: ImageSequence) -> list[torch.Tensor]:
        self._load(vector, training=False)
        module = self._model.module
        return [scores_of(module(chunk)).cpu() for chunk in self._preprocess.chunks(images)]

    def _explain_lone_sample(self, error: ValueError, samples: int) -> None:
        """Raise BadInput if a mini-batch of one sample may be the cause of the error."""
        batch = self.settings.batch
        if samples == 1:
            raise BadInput(
                "a client has only 1 sample, and this model cannot train on a single sample "
                f"({error}); give each client 2 or more, or use a model without batch norm"
            ) from error
        if (samples - 1) % batch == 0:
            raise BadInput(
                f"batch = {batch} leaves a mini-batch of 1 of a client's {samples} samples, and "
                f"this model cannot train on a single sample ({error}); use for example batch = "
                f"{usable_batch(samples, batch)}"
            ) from error


def scores_of(output: Any) -> torch.Tensor:
    """Return the tensor of a module's output, which may be its item or attribute "logits".

    >>> scores_of({"loss": None, "logits": torch.ones(1, 2)})
    tensor([[1., 1.]])
    """
    if isinstance(output, torch.Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", None) if found is None else found
    if not isinstance(found, torch.Tensor):
        raise BadInput(
            f"the model returns a {type(output).__name__} without logits; return a tensor, or an "
            "object with the tensor as its item or attribute 'logits'"
        )
    return found


def usable_batch(samples: int, batch: int) -> int:
    """Return the smallest size above `batch` that leaves no mini-batch of a single sample.

    >>> usable_batch(17, 16), usable_batch(33, 16), usable_batch(5, 1)
    (17, 17, 3)
    """
    return next(size for size in range(batch + 1, max(batch, samples) + 2) if samples % size != 1)


def require_samples(count: int) -> None:
    """Raise BadInput if there are no samples."""
    if not count:
        raise BadInput("there is nothing to train or evaluate on (samples = 0); give 1 or more")
