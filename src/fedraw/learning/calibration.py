"""CCVR: re-train the output layer on virtual features, after training (Luo et al., NeurIPS 2021).

The features z of a sample are the inputs of the output layer. For each label, every client computes
the number of its samples (n), the sum of their features (Σ z) and the sum of their products
(Σ z zᵀ). The server needs only the sums over all clients, so secure aggregation suffices, and the
pooled mean and covariance are exact:

    μ = Σ z / n,    Σ = (Σ z zᵀ − n μ μᵀ) / (n − 1).

The server draws the same number of virtual features of each label from N(μ, Σ) and continues the
training of the output layer on them. The rest of the model does not change. In the published
method each client sends its means and covariances, which gives the same pooled moments and reveals
more.

A label with fewer than MIN_SAMPLES samples in total is left out, because its sums would reveal
single features. Its row of the output layer does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraw.core.types import Floats, Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.inputs import ImageSequence
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer

# The smallest number of samples of a label, over all clients, for which its moments are used.
MIN_SAMPLES = 5


@dataclass(eq=False)
class FeatureSums:
    """Sums of features by label: of one client, or over all clients.

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
        """Return sums over no features."""
        return cls(
            np.zeros(labels, np.int64), np.zeros((labels, size)), np.zeros((labels, size, size))
        )

    def add(self, features: npt.NDArray[np.floating], labels: Ints) -> None:
        """Add the features of one client's samples."""
        for label in np.unique(labels):
            z = features[labels == label].astype(np.float64)
            self.counts[label] += len(z)
            self.totals[label] += z.sum(0)
            self.products[label] += z.T @ z

    def moments(self, label: int) -> tuple[Floats, Floats]:
        """Return the mean and the unbiased covariance of a label's features over all clients."""
        count = self.counts[label]
        if count < 2:
            raise BadInput(
                f"label {label} has {count} samples, but a covariance needs 2 or more; leave the "
                "label out"
            )
        mean = self.totals[label] / count
        return mean, (self.products[label] - count * np.outer(mean, mean)) / (count - 1)

    def draw(
        self, labels: Ints, samples: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.float32], Ints]:
        """Draw `samples` virtual features of each label, and return them with their labels."""
        drawn = []
        for label in labels:
            mean, covariance = self.moments(label)
            values, vectors = np.linalg.eigh(covariance)
            # Rounding makes some eigenvalues of a singular covariance negative.
            root = vectors * np.sqrt(np.maximum(values, 0))
            drawn.append(mean + rng.standard_normal((samples, mean.size)) @ root.T)
        return np.concatenate(drawn).astype(np.float32), np.repeat(labels, samples)


class Head:
    """The output layer of a trainer's model: a linear layer whose output is the model's output."""

    def __init__(self, trainer: Trainer, classes: int) -> None:
        weight = trainer.layout.head_weight
        name = "" if weight is None else weight.name.rpartition(".")[0]
        found = None if weight is None else trainer.module.get_submodule(name)
        if type(found) is not nn.Linear or found.out_features != classes:
            raise BadInput(
                "calibration re-trains the output layer, but the model does not end in an "
                f"nn.Linear of {classes} outputs; use another model, or leave calibration out"
            )
        self._trainer, self._layer = trainer, found
        self.size = found.in_features

    def features(self, vector: Vector, images: ImageSequence) -> npt.NDArray[np.float32]:
        """Return the inputs of the output layer for these images, in evaluation mode."""
        seen: list[torch.Tensor] = []  # for each call of the layer, its input and its output
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
                "calibration re-trains the output layer, but the output of the model is not the "
                "output of its last nn.Linear; use another model, or leave calibration out"
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
        """Return the model with a re-trained output layer; rows of absent labels do not change."""
        layout, bias = self._trainer.layout, self._layer.bias is not None
        layer = nn.Linear(self.size, self._layer.out_features, bias=bias)
        present = np.bincount(labels, minlength=layer.out_features) > 0
        mask = np.where(present, 0, -np.inf).astype(np.float32)
        # The values of the output layer, in the order of the vector of `layer`.
        head = [part for part in (layout.head_weight, layout.head_bias) if part is not None]
        positions = np.concatenate([np.arange(p.slice.start, p.slice.stop) for p in head])
        result = vector.copy()
        trainer = Trainer(layer, settings)
        result[positions] = trainer.train(vector[positions], features, labels, rng, shift=mask)
        return result
