"""Weighted means of a buffer that one bad update cannot move far.

clip   norm clipping (Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor Federated Learning?",
       2019) to the scale of the buffer itself: with the differences δ_j = θ_j − θ to the current
       model and their median norm m,  θ + Σ_j w_j min(1, c m / ‖δ_j‖) δ_j
trim   the coordinate-wise trimmed mean (Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust
       Distributed Learning", ICML 2018): of each coordinate's K values the ⌊β K⌋ smallest and
       largest are left out, at least one of each, and the others are averaged by their weights

Both look at all K updates, so they cost O(K·d) where a running sum costs O(d).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np

from fedraw.core.aggregation import Term
from fedraw.core.buffer import Slot
from fedraw.core.settings import BadSetting, With, above
from fedraw.core.types import Vector

Robust = Literal["clip", "trim"]
RobustAt = Annotated[float | None, With("robust", ("clip", "trim"), optional=True), above(0)]
# The settings c and β that are used if none is set.
DEFAULTS: dict[Robust, float] = {"clip": 1.0, "trim": 0.1}
# Numbers of each update per pass.
BLOCK = 1 << 14


def check_robust(robust: Robust | None, robust_at: float | None) -> None:
    """Refuse a share of updates that leaves none."""
    if robust == "trim" and robust_at is not None and robust_at >= 0.5:
        raise BadSetting(
            f"robust_at = {robust_at:g} is the share of updates that is left out on each side; set "
            "it above 0 and below 0.5"
        )


def robust_mean(
    slots: Iterable[Slot], center: Vector | None, robust: Robust, robust_at: float | None
) -> Vector:
    """Return the robust mean of the slots, weighted by their coefficients.

    `center` is the current model, or None if the updates are differences, of which only the
    parameters count. Batch-norm statistics of whole models are clipped apart from the parameters,
    because they may have any size.

    >>> from fedraw.core.update import Update
    >>> sent = [np.array([value], np.float32) for value in (1, 2, 3, 40)]
    >>> slots = [Slot(Update(client, 0, own, examples=1), 1.0) for client, own in enumerate(sent)]
    >>> robust_mean(slots, np.zeros(1, np.float32), "trim", 0.25)
    array([2.5], dtype=float32)
    >>> robust_mean(slots, np.zeros(1, np.float32), "clip", 1.0)  # 1, 2, and 2.5 twice
    array([2.], dtype=float32)
    """
    slots = list(slots)
    at = DEFAULTS[robust] if robust_at is None else robust_at
    total = sum(slot.coefficient for slot in slots)
    if center is None:
        terms = [(slot.coefficient / total, slot.update.parameters) for slot in slots]
        center, parameters = np.zeros(terms[0][1].size, np.float32), terms[0][1].size
    else:
        terms = [(slot.coefficient / total, slot.update.vector) for slot in slots]
        parameters = slots[0].update.parameters.size
    if robust == "trim":
        return _trimmed(terms, min(max(1, int(at * len(terms))), (len(terms) - 1) // 2))
    return _clipped(terms, center, at, parameters)


def _clipped(terms: Sequence[Term], center: Vector, at: float, parameters: int) -> Vector:
    mean = np.empty(center.size, np.float32)
    for part in (slice(0, parameters), slice(parameters, center.size)):
        own, start = [(weight, vector[part]) for weight, vector in terms], center[part]
        norms = np.sqrt([_squares(vector, start) for _, vector in own])
        bound = at * float(np.median(norms))
        factors = [min(1.0, bound / norm) if norm > 0 else 1.0 for norm in norms.tolist()]
        result = mean[part]
        for begin in range(0, start.size, BLOCK):
            block = slice(begin, begin + BLOCK)
            total = start[block].astype(np.float64)
            for (weight, vector), factor in zip(own, factors, strict=True):
                total += (weight * factor) * (vector[block].astype(np.float64) - start[block])
            result[block] = total
    return mean


def _squares(vector: Vector, start: Vector) -> float:
    """‖θ − θ_0‖², in float64 and without BLAS, whose last bits depend on the number of threads."""
    total = 0.0
    for begin in range(0, start.size, BLOCK):
        block = slice(begin, begin + BLOCK)
        difference = vector[block].astype(np.float64) - start[block]
        total += float(np.add.reduce(difference * difference))
    return total


def _trimmed(terms: Sequence[Term], left_out: int) -> Vector:
    size, count = terms[0][1].size, len(terms)
    weights = np.array([weight for weight, _ in terms])
    mean = np.empty(size, np.float32)
    for begin in range(0, size, BLOCK):
        values = np.stack([vector[begin : begin + BLOCK] for _, vector in terms])
        kept = np.argsort(values, axis=0, kind="stable")[left_out : count - left_out]
        chosen = weights[kept]
        weighted = chosen * np.take_along_axis(values, kept, axis=0)
        mean[begin : begin + BLOCK] = weighted.sum(axis=0) / chosen.sum(axis=0)
    return mean
