"""The standing of labels: how well the model's influence covers each of them.

Two things decide whether a label is learned: how much of the model speaks for it relative to other
labels, and how much of the model comes from clients that hold it at all, because all other clients
unlearn it. Standing is the geometric mean of the two. At 1 a label has the influence that the
median label would have if all samples counted the same, and every client holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats

# If even the median label is held by a smaller share of the clients, standing is relative to that.
USUAL_COVERAGE = 0.25


def standing_scale(table: LabelTable) -> float:
    """The influence of a label of standing 1 that every client holds."""
    usual = float(np.median(table.coverage())) / len(table) / USUAL_COVERAGE
    return float(np.median(table.fair_shares())) * min(1.0, usual)


def standing(weight: npt.NDArray[Any], holders: npt.NDArray[Any], scale: float) -> Floats:
    """The standing of each label.

    Args:
        weight: The label's influence Λ_l = Σ_i π_i freq(l, i).
        holders: The influence of all clients that hold the label.
        scale: See `standing_scale`.

    """
    return np.asarray(np.sqrt(weight * holders / scale), np.float64)
