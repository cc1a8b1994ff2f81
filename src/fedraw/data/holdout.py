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


def unstratified(n: int, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions to keep and to hold out, drawn from all alike, whatever their labels.

    >>> [len(part) for part in unstratified(10, 0.2, np.random.default_rng(0))]
    [8, 2]
    """
    check_share("holdout", share)
    shuffled = rng.permutation(n) if share else np.arange(n)
    size = round(share * n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])


def grouped(groups: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions to keep and to hold out, no group on both sides.

    Whole groups are drawn until the share is reached, so a little more may be held out; one group
    at least is kept.

    >>> kept, held = grouped(np.array([7, 7, 8, 8, 9, 9]), 0.3, np.random.default_rng(0))
    >>> len(kept), len(held), held[1] - held[0]
    (4, 2, np.int64(1))
    """
    check_share("holdout", share)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    drawn = order[:-1][before[:-1] < round(share * len(groups))]
    is_held = np.isin(number, drawn)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def check_share(key: str, share: float) -> None:
    if not 0 <= share < 1:
        raise BadInput(f"{key} = {share!r} is not a share; it must be in [0, 1)")


def _draw(positions: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0:
        return positions[:0]
    size = min(max(1, round(share * len(positions))), len(positions) - 1)
    return rng.permutation(positions)[:size]
