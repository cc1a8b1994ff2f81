"""Rarity scores: S_i = Σ_l freq(l, i) / coverage(l)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats, Ints


def rarity_scores(table: LabelTable) -> Floats:
    """One score per client: high for a client whose labels few others hold.

    S_i = Σ_l freq(l, i) / coverage(l)

    >>> table = LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
    >>> rarity_scores(table)
    array([0.5 , 0.75])
    """
    return scores_of_rows(table.start, table.column, table.share, table.coverage())


def far_above_median(scores: Floats, times: float = 2.0) -> npt.NDArray[np.bool_]:
    """Who stands out: the scores above so many times the median.

    >>> far_above_median(np.array([0.2, 0.2, 0.5]))
    array([False, False,  True])
    """
    return scores > times * np.median(scores)


def scores_of_rows(start: Ints, column: Ints, share: Floats, coverage: Ints) -> Floats:
    """Score each row `start[i]:start[i + 1]`; a row scores the same alone and among a million."""
    return np.add.reduceat(share / coverage[column], start[:-1])
