"""The standing of a label: a predictor of whether the model learns it.

Two quantities decide whether a label is learned: its influence on the model relative to other
labels, and the influence of the clients that hold it, because all other clients unlearn it.
Standing is the geometric mean of the two. A label of standing 1 has the influence that the median
label would have if all samples counted equally, and every client holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats

# If a smaller share of the clients holds the median label, standing is relative to that share.
USUAL_COVERAGE = 0.25


def standing_scale(table: LabelTable) -> float:
    """Return the influence of a label of standing 1 that every client holds.

    >>> standing_scale(LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 1, "dog": 2}}))
    0.5
    >>> standing_scale(LabelTable.from_counts({i: {i: 1} for i in range(8)}))
    0.0625
    """
    usual = float(np.median(table.coverage())) / len(table) / USUAL_COVERAGE
    return float(np.median(table.fair_shares())) * min(1.0, usual)


def standing(weight: npt.NDArray[Any], holders: npt.NDArray[Any], scale: float) -> Floats:
    """Return the standing of each label.

    Args:
        weight: The label's influence Λ_l = Σ_i π_i freq(l, i).
        holders: The influence of all clients that hold the label.
        scale: See `standing_scale`.

    >>> standing(np.array([0.2, 0.01]), np.array([0.8, 0.01]), scale=0.04)
    array([2.  , 0.05])

    """
    return np.asarray(np.sqrt(weight * holders / scale), np.float64)
