"""Sets samples aside for testing."""

from __future__ import annotations

import numpy as np

from fedraw.core.types import Ints
from fedraw.errors import BadInput


def stratified(labels: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions to keep and positions to hold out, the same share of each label.

    A label with two samples or more has at least one on either side, or a rare label could not be
    measured; a share of 0 holds nothing out.

    >>> kept, held = stratified(np.array([0, 0, 0, 0, 1, 1, 2]), 0.25, np.random.default_rng(0))
    >>> len(kept), [0, 0, 0, 0, 1, 1, 2][held[0]], len(held)
    (5, 0, 2)
    """
    check_share("holdout", share)
    held = [_draw(np.flatnonzero(labels == label), share, rng) for label in np.unique(labels)]
    is_held = np.zeros(len(labels), dtype=bool)
    is_held[np.concatenate(held) if held else []] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def check_share(key: str, share: float) -> None:
    if not 0 <= share < 1:
        raise BadInput(f"{key} = {share!r} is not a share; it must be in [0, 1)")


def _draw(positions: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0:
        return positions[:0]
    size = min(max(1, round(share * len(positions))), len(positions) - 1)
    return rng.permutation(positions)[:size]
