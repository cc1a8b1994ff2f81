"""Loss, gradient and curvature of a dense network on one client's samples, in double precision.

The library trains these networks (`linear` and `mlp`) with torch. The theory needs gradients at
models of a finished run, and the spread of the gradients of single samples, which is a by-product
of backpropagation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput

# The step of the finite difference for a Hessian-vector product.
_STEP = 1e-5


class Gradient(NamedTuple):
    """The mean loss of some samples, its gradient, and the spread of the samples' gradients."""

    loss: float
    gradient: Floats
    spread: float  # mean squared distance of a sample's gradient from their mean


@dataclass(frozen=True)
class DenseNetwork:
    """Dense layers with ReLU between them and cross-entropy at the end, as one flat vector."""

    shapes: tuple[tuple[int, int], ...]  # outputs and inputs of each layer

    @classmethod
    def of(cls, layout: Layout) -> DenseNetwork:
        """Take the layers from a model's layout: pairs of a matrix and a bias."""
        shapes = [segment.shape for segment in layout.segments]
        matrices, biases = shapes[::2], shapes[1::2]
        if [shape[:1] for shape in matrices] != biases or {len(s) for s in matrices} != {2}:
            raise BadInput(
                f"a model with tensors of shapes {shapes} is not a dense network; "
                "use training.model = 'linear' or 'mlp'"
            )
        return cls(tuple((shape[0], shape[1]) for shape in matrices))

    def gradient(self, vector: Floats, inputs: Floats, labels: Ints) -> Gradient:
        """Return the mean cross-entropy over the samples, and its gradient.

        >>> network = DenseNetwork(((2, 1),))
        >>> one = network.gradient(np.zeros(4), np.array([[3.0]]), np.array([0]))
        >>> one.gradient.tolist(), one.spread  # probabilities ½ and ½ where 1 and 0 are wanted
        ([-1.5, 1.5, -0.5, 0.5], 0.0)
        """
        layers, before = self._layers(vector), [inputs]
        for matrix, bias in layers[:-1]:
            before.append(np.maximum(before[-1] @ matrix.T + bias, 0.0))
        matrix, bias = layers[-1]
        scores = before[-1] @ matrix.T + bias
        scores -= scores.max(1, keepdims=True)
        exponentials = np.exp(scores)
        sums = exponentials.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float((np.log(sums[:, 0]) - scores[rows, labels]).mean())
        error = exponentials / sums
        error[rows, labels] -= 1.0
        parts: list[Floats] = []
        squares = np.zeros(len(labels))
        for n in range(len(layers) - 1, -1, -1):
            # A sample's gradient is the outer product of its error and its input.
            squares += np.square(error).sum(1) * (np.square(before[n]).sum(1) + 1.0)
            parts = [(error.T @ before[n]).ravel(), error.sum(0), *parts]
            if n:
                error = (error @ layers[n][0]) * (before[n] > 0)
        mean = np.concatenate(parts) / len(labels)
        return Gradient(loss, mean, max(0.0, float(squares.mean() - mean @ mean)))

    def curvature(
        self, vector: Floats, inputs: Floats, labels: Ints, start: Floats, rounds: int = 12
    ) -> float:
        """Return the largest |eigenvalue| of the Hessian, from below, by power iteration.

        >>> network, data = DenseNetwork(((2, 1),)), (np.array([[3.0]]), np.array([0]))
        >>> round(network.curvature(np.zeros(4), *data, np.array([1.0, 0, 0, 0])), 6)
        5.0
        """
        direction, length = start / np.linalg.norm(start), 0.0
        for _ in range(rounds):
            ahead, behind = (
                self.gradient(vector + sign * _STEP * direction, inputs, labels).gradient
                for sign in (1, -1)
            )
            product = (ahead - behind) / (2 * _STEP)
            length = float(np.linalg.norm(product))
            if not length:
                break
            direction = product / length
        return length

    def smoothness(self, inputs: Floats) -> float | None:
        """Return a bound on the curvature at every model; None with hidden layers.

        The Hessian of cross-entropy in the scores has no eigenvalue above ½, so the Hessian of a
        linear model has none above ½ λ_max of the inputs' second moments, bias included.
        """
        if len(self.shapes) > 1:
            return None
        with_bias = np.hstack([inputs, np.ones((len(inputs), 1))])
        return float(np.linalg.norm(with_bias, 2) ** 2 / len(inputs) / 2)

    def _layers(self, vector: Floats) -> list[tuple[Floats, Floats]]:
        layers, start = [], 0
        for outputs, inputs in self.shapes:
            middle = start + outputs * inputs
            matrix = vector[start:middle].reshape(outputs, inputs)
            start = middle + outputs
            layers.append((matrix, vector[middle:start]))
        return layers
