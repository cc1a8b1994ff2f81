"""Weights from scores, with an optional cap; discounts for staleness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedraw.core.types import Floats
from fedraw.errors import BadInput

Cap = Literal["none", "naive", "water-filling"]
Staleness = Literal["none", "polynomial", "hinge"]

# A difference that is this small relative to its operands has lost too many digits.
CANCELLED = 1e-6


def weights(scores: Sequence[float], cap: Cap = "none", cap_at: float = 1.0) -> Floats:
    """Return weights that are proportional to the scores, sum to one and obey the cap.

    naive:          w' = min(w, c) / Σ min(w, c), which may exceed c again
    water-filling:  w' = min(c, level · S), with the level at which the sum is one

    >>> weights([8, 1, 1], "water-filling", 0.5)
    array([0.5 , 0.25, 0.25])
    >>> weights([8, 1, 1], "naive", 0.5).round(3)
    array([0.714, 0.143, 0.143])
    """
    if not scores or not all(0 < score < np.inf for score in scores):
        raise BadInput(f"scores must be positive, got {list(scores)[:10]}")
    check_cap(cap, cap_at, len(scores))
    capped = np.array(capped_scores(scores, cap, cap_at))
    return np.asarray(capped / capped.sum(), np.float64)


def weights_of_rows(scores: Floats, cap: Cap, cap_at: float) -> Floats:
    """Return the `weights` of every row at once; the scores and the cap must be valid.

    >>> weights_of_rows(np.array([[8.0, 1, 1]]), "water-filling", 0.5)
    array([[0.5 , 0.25, 0.25]])
    """
    weight = np.asarray(scores / scores.sum(-1, keepdims=True), np.float64)
    if cap == "naive":
        lowered = np.minimum(weight, cap_at)
        return np.asarray(lowered / lowered.sum(-1, keepdims=True), np.float64)
    if cap == "water-filling":
        pinned = np.zeros(weight.shape, np.bool_)
        while (above := (weight > cap_at * (1 + 1e-12)) & ~pinned).any():
            pinned |= above
            free = np.where(pinned, 0.0, scores)
            room = 1 - cap_at * pinned.sum(-1, keepdims=True)
            level = room / np.maximum(free.sum(-1, keepdims=True), np.finfo(float).tiny)
            weight = np.where(pinned, cap_at, free * level)
    return weight


def capped_scores(scores: Sequence[float], cap: Cap, cap_at: float) -> Sequence[float]:
    """Return the scores, lowered so that proportional weights obey the cap.

    Only scores above the cap change, so a running weighted sum has few terms to correct. This is
    plain Python, because NumPy's overhead exceeds the arithmetic for the tens of slots in a buffer.
    """
    if cap == "none":
        return scores
    ceiling = sum(scores) * cap_at if cap == "naive" else _water_level(scores, cap_at)
    if max(scores) <= ceiling:
        return scores
    return [min(score, ceiling) for score in scores]


def _water_level(scores: Sequence[float], cap_at: float) -> float:
    """Return the score whose weight is exactly `cap_at` once all higher scores are lowered to it.

    `rest` is the sum of the scores that are not pinned to the level. Each pinned score is
    subtracted from it. Once `rest` is below a millionth of the total, it has lost too many digits
    to cancellation, so it is recomputed from the smallest score up.
    """
    rest = total = sum(scores)
    room = 1.0
    ranked = sorted(scores, reverse=True)
    for pinned, score in enumerate(ranked, 1):
        # With the larger scores pinned at the cap, the others share the rest of the weight.
        if score * room <= cap_at * rest:
            break
        rest -= score
        room -= cap_at
        if rest < total * CANCELLED:
            rest = sum(reversed(ranked[pinned:]))
        if rest <= 0 or room <= 0:
            return min(scores)
    return cap_at * rest / room


def check_cap(cap: str, cap_at: float, slots: int, name: str = "cap_at") -> None:
    """Refuse a cap that `slots` weights cannot meet."""
    if cap not in ("none", "naive", "water-filling"):
        raise BadInput(f"cap {cap!r} is unknown; known: none, naive, water-filling")
    if cap == "none":
        return
    if not 0 < cap_at <= 1:
        raise BadInput(f"{name} = {cap_at:g} is not a weight; use a number above 0 and at most 1")
    if cap_at < 1 / slots:
        raise BadInput(
            f"{name} = {cap_at:g} is below 1/{slots}: {slots} weights of at most {cap_at:g} cannot "
            f"sum to 1; raise it to {1 / slots:.4g} or more"
        )


def staleness_discount(
    kind: Staleness, versions: int, exponent: float = 0.5, slope: float = 10.0, grace: float = 4.0
) -> float:
    """Return s(τ): 1, (1 + τ)^-a, or 1 up to τ = b and 1 / (a (τ − b) + 1) beyond.

    >>> staleness_discount("polynomial", 3)
    0.5
    >>> staleness_discount("hinge", 4), staleness_discount("hinge", 5)
    (1.0, 0.09090909090909091)
    """
    if kind == "polynomial":
        return float((1 + versions) ** -exponent)
    if kind == "hinge" and versions > grace:
        return 1 / (slope * (versions - grace) + 1)
    return 1.0
