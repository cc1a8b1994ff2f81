"""CCVR: re-train the output layer on virtual features, after training (Luo et al., NeurIPS 2021).

Every client sums up the features of its samples, that is the inputs of the output layer, label by
label: how many there are (n), their sum (Σ z) and the sum of their products (Σ z zᵀ). Sums of all
clients add up to those of the pooled data, so a secure sum suffices, and the pooled mean and
covariance are exact:

    μ = Σ z / n,    Σ = (Σ z zᵀ − n μ μᵀ) / (n − 1).

The server draws the same number of virtual features of each label from N(μ, Σ) and trains the
output layer on them, from where it was. The rest of the model stays as it is. The published method
sends means and covariances of each client instead, which gives the same pooled moments and reveals
more.

A label with fewer than LEAST samples in all is left out: its sums would show single features. Its
row of the output layer does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraw.core.layout import Layout
from fedraw.core.types import Floats, Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.inputs import ImageSequence
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer

# The fewest samples of a label, over all clients, whose moments may be used.
LEAST = 5


@dataclass(eq=False)
class FeatureSums:
    """Sums of features by label: what a client sends, and what the server has of all clients.

    >>> sums = FeatureSums.zeros(labels=1, size=1)
    >>> sums.add(np.array([[0.0], [2.0]]), np.array([0, 0]))  # one client
    >>> sums.add(np.array([[4.0]]), np.array([0]))  # another
    >>> mean, covariance = sums.moments(0)
    >>> mean.item(), covariance.item()
    (2.0, 4.0)
    """

    counts: Ints
    totals: Floats  # labels × size
    products: Floats  # labels × size × size

    @classmethod
    def zeros(cls, labels: int, size: int) -> FeatureSums:
        """The sums of no features."""
        return cls(
            np.zeros(labels, np.int64), np.zeros((labels, size)), np.zeros((labels, size, size))
        )

    def add(self, features: npt.NDArray[np.floating], labels: Ints) -> None:
        """Add the features of one client's samples."""
        for label in np.unique(labels):
            own = features[labels == label].astype(np.float64)
            self.counts[label] += len(own)
            self.totals[label] += own.sum(0)
            self.products[label] += own.T @ own

    def moments(self, label: int) -> tuple[Floats, Floats]:
        """The mean and the unbiased covariance of a label's features over all clients."""
        count = self.counts[label]
        if count < 2:
            raise BadInput(f"label {label} has {count} samples, and a covariance needs 2 or more")
        mean = self.totals[label] / count
        return mean, (self.products[label] - count * np.outer(mean, mean)) / (count - 1)

    def draw(
        self, labels: Ints, samples: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.float32], Ints]:
        """Draw virtual features of each of the labels, and return them with their labels."""
        drawn = []
        for label in labels:
            mean, covariance = self.moments(label)
            values, vectors = np.linalg.eigh(covariance)
            # Rounding makes some eigenvalues of a flat covariance negative.
            root = vectors * np.sqrt(np.maximum(values, 0))
            drawn.append(mean + rng.standard_normal((samples, mean.size)) @ root.T)
        return np.concatenate(drawn).astype(np.float32), np.repeat(labels, samples)


class Head:
    """The output layer of a trainer's model: a linear layer whose output is the model's."""

    def __init__(self, trainer: Trainer, classes: int) -> None:
        weight = trainer.layout.head_weight
        name = "" if weight is None else weight.name.rpartition(".")[0]
        found = None if weight is None else trainer.module.get_submodule(name)
        if type(found) is not nn.Linear or found.out_features != classes:
            raise BadInput(
                "calibration re-trains the output layer, and the model does not end in an "
                f"nn.Linear of {classes} outputs; use another model, or leave calibration out"
            )
        self._trainer, self._layer = trainer, found
        self.size = found.in_features

    def features(self, vector: Vector, images: ImageSequence) -> npt.NDArray[np.float32]:
        """The inputs of the output layer for these images, in evaluation mode."""
        seen: list[torch.Tensor] = []
        handle = self._layer.register_forward_hook(
            lambda _, inputs, output: seen.extend((inputs[0].detach().cpu(), output.detach().cpu()))
        )
        try:
            outputs = self._trainer.outputs(vector, images)
        finally:
            handle.remove()
        scores = torch.cat(seen[1::2]).float().numpy() if seen else outputs
        if scores.shape != outputs.shape or not np.array_equal(scores, outputs, equal_nan=True):
            raise BadInput(
                "calibration re-trains the output layer, and the model's last nn.Linear does not "
                "give its output; use another model, or leave calibration out"
            )
        return torch.cat(seen[::2]).float().numpy()

    def retrained(
        self,
        vector: Vector,
        features: npt.NDArray[np.float32],
        labels: Ints,
        settings: SGD,
        rng: np.random.Generator,
    ) -> Vector:
        """The model with its output layer trained on; rows of labels that are absent stay."""
        layout, layer = self._trainer.layout, nn.Linear(self.size, self._layer.out_features)
        if self._layer.bias is None:
            layer = nn.Linear(self.size, self._layer.out_features, bias=False)
        held = np.bincount(labels, minlength=layer.out_features) > 0
        mask = np.where(held, 0, -np.inf).astype(np.float32)
        trainer = Trainer(layer, settings)
        places = _places(layout)
        start = np.concatenate([vector[place] for place in places])
        trained = trainer.train(start, features, labels, rng, shift=mask)
        result, first = vector.copy(), 0
        for place in places:
            size = place.stop - place.start
            result[place] = trained[first : first + size]
            first += size
        return result


def _places(layout: Layout) -> list[slice]:
    """Where the weight and the bias of the output layer are in a vector."""
    segments = (layout.head_weight, layout.head_bias)
    return [segment.slice for segment in segments if segment is not None]
