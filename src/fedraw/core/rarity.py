"""Rarity scores: S_i = Σ_l freq(l, i) / coverage(l)."""

from __future__ import annotations

import numpy as np

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


def scores_of_rows(start: Ints, column: Ints, share: Floats, coverage: Ints) -> Floats:
    """Score each row `start[i]:start[i + 1]`; a row scores the same alone and among a million."""
    return np.add.reduceat(share / coverage[column], start[:-1])
