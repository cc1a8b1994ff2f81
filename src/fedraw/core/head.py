"""What a classifier's output layer says of each label, in one number a label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.layout import Layout, Segment
from fedraw.core.types import Floats, Vector
from fedraw.errors import BadInput

# How many versions back an update may have started and still be read.
VERSIONS = 4096


def outputs(layout: Layout | None, who: str) -> int:
    """How many labels the output layer has."""
    if layout is None or layout.head_weight is None:
        raise BadInput(
            f"{who} reads the model's output layer, and none is known; give a layout whose last "
            "matrix is that layer"
        )
    return layout.head_weight.shape[0]


def levels(vector: Vector, layout: Layout) -> Floats:
    """The output bias of each label; of a layer without one, the sum of the label's weights.

    Linear in the vector: the levels of a difference are the difference of the levels. The sum
    stands in for the bias where what enters the layer is not negative, as behind a ReLU.

    >>> layout = Layout.of([("fc.weight", (2, 3)), ("fc.bias", (2,))])
    >>> levels(np.array([1, 2, 3, 4, 5, 6, 0.5, -0.5], np.float32), layout).tolist()
    [0.5, -0.5]
    >>> levels(np.arange(6, dtype=np.float32), Layout.of([("fc.weight", (2, 3))])).tolist()
    [3.0, 12.0]
    """
    if layout.head_bias is not None:
        return vector[layout.head_bias.slice].astype(np.float64)
    weight: Segment | None = layout.head_weight
    if weight is None:
        raise BadInput("the layout has no output layer")
    rows: Floats = vector[weight.slice].reshape(weight.shape).sum(axis=1, dtype=np.float64)
    return rows


@dataclass(eq=False)
class Levels:
    """The levels of the last so many versions of a model, for clients that send whole models."""

    level: npt.NDArray[np.float64]  # a ring of so many rows, in which version v has its place
    version: npt.NDArray[np.int64]  # which one stands there

    @classmethod
    def empty(cls, labels: int, versions: int = VERSIONS) -> Levels:
        return cls(np.zeros((versions, labels)), np.full(versions, -1))

    def keep(self, version: int, level: Floats) -> None:
        place = version % len(self.version)
        self.level[place], self.version[place] = level, version

    def of(self, version: int) -> Floats | None:
        """None of a version that is forgotten."""
        place = version % len(self.version)
        return self.level[place] if self.version[place] == version else None
