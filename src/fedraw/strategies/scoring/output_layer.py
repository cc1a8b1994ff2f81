"""The output layer of a classifier, reduced to one number per label: the label's level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.layout import Layout
from fedraw.core.types import Floats, Vector
from fedraw.errors import BadInput

# The number of model versions that `LevelHistory` remembers.
VERSIONS = 4096


@dataclass(frozen=True)
class OutputLayer:
    """The position of a classifier's output layer in the model vector.

    The level of a label is its output bias, or the sum of its output weights for a layer without
    bias. Levels are linear in the vector, so the levels of a difference are the difference of the
    levels. The sum of the weights can replace the bias if the inputs of the layer are not negative,
    for example after a ReLU.

    >>> layer = OutputLayer.of(Layout.of([("fc.weight", (2, 3)), ("fc.bias", (2,))]))
    >>> layer.levels(np.array([1, 2, 3, 4, 5, 6, 0.5, -0.5], np.float32)).tolist()
    [0.5, -0.5]
    >>> layer = OutputLayer.of(Layout.of([("fc.weight", (2, 3))]))
    >>> layer.levels(np.arange(6, dtype=np.float32)).tolist()
    [3.0, 12.0]
    """

    start: int
    stop: int
    labels: int

    @classmethod
    def of(cls, layout: Layout | None, purpose: str = "this") -> OutputLayer:
        """Find the output layer; `purpose` begins the message if the layout has none."""
        if layout is None or layout.head_weight is None:
            raise BadInput(
                f"{purpose} reads the model's output layer, and none is known; give a layout whose "
                "last matrix is that layer"
            )
        place = (layout.head_bias or layout.head_weight).slice
        return cls(place.start, place.stop, layout.head_weight.shape[0])

    def levels(self, vector: Vector) -> Floats:
        """Return the level of each label in a model, or in a difference of two models."""
        rows = vector[self.start : self.stop].reshape(self.labels, -1)
        levels: Floats = rows.sum(axis=1, dtype=np.float64)
        return levels

    def lift(self, vector: Vector, label: int, amount: float) -> Vector:
        """Return a copy of the vector in which the level of one label is higher by `amount`."""
        lifted = vector.copy()
        row = lifted[self.start : self.stop].reshape(self.labels, -1)[label]
        row += amount / row.size
        return lifted


@dataclass(eq=False)
class LevelHistory:
    """The levels of the latest versions of a model, for clients that send whole models."""

    levels: npt.NDArray[np.float64]  # a ring with one row per version
    version: npt.NDArray[np.int64]  # which version each row belongs to

    @classmethod
    def empty(cls, labels: int, versions: int = VERSIONS) -> LevelHistory:
        """Return a history with room for `versions` versions."""
        return cls(np.zeros((versions, labels)), np.full(versions, -1))

    def record(self, version: int, levels: Floats) -> None:
        """Record a version in place of the oldest one."""
        row = version % len(self.version)
        self.levels[row], self.version[row] = levels, version

    def of(self, version: int) -> Floats | None:
        """Return the levels of a version, or None if it has been evicted."""
        row = version % len(self.version)
        return self.levels[row] if self.version[row] == version else None
