"""The words of the library, as types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# A client's stable name: a number in a simulation, a site's own name in a federation.
ClientId = int | str

# A class of the task, by number or by name.
Label = int | str

# One client's histogram of its local training labels (Any: a Mapping's key type is invariant).
LabelCounts = Mapping[Any, int]

# A model, or a difference of two: one flat float32 array.
Vector = npt.NDArray[np.float32]

# Arrays that are no models: weights, scores, positions.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Times, in whatever unit, with which sums, squares and rates can be computed.
SHORTEST_TIME, LONGEST_TIME = 1e-100, 1e100
