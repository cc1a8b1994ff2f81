"""Rarity scores S_i = Σ_l freq(l, i) / coverage(l), and which labels and clients are rare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats, Ints, Label
from fedraw.errors import BadInput, nearest

L = TypeVar("L", bound=Label)


def rarity_scores(table: LabelTable) -> Floats:
    """Return one score per client, high for a client whose labels few others hold.

    S_i = Σ_l freq(l, i) / coverage(l)

    >>> table = LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
    >>> rarity_scores(table)
    array([0.5 , 0.75])
    """
    return scores_of_rows(table.start, table.column, table.share, table.coverage())


def far_above_median(scores: Floats, times: float = 2.0) -> npt.NDArray[np.bool_]:
    """Return a mask of the scores above `times` times the median.

    >>> far_above_median(np.array([0.2, 0.2, 0.5]))
    array([False, False,  True])
    """
    return scores > times * np.median(scores)


def rarest(scores: Floats, most: int | None = None, times: float = 2.0) -> Ints:
    """Return the positions of at most `most` scores far above the median, the highest first.

    >>> rarest(np.array([0.1, 0.5, 0.1, 0.1, 0.9]), 1)
    array([4])
    """
    far = np.flatnonzero(far_above_median(scores, times))
    return np.asarray(far[np.argsort(-scores[far], kind="stable")][:most], np.int64)


def weights_of_rarest(scores: Floats, total: float, mass: float = 0.5) -> Floats:
    """Return scores / total, scaled down if needed so that they sum to at most `mass`.

    >>> weights_of_rarest(np.array([0.3, 0.1]), 1.0), weights_of_rarest(np.array([3.0, 1.0]), 5.0)
    (array([0.3, 0.1]), array([0.375, 0.125]))
    """
    own = scores / total
    together = sum(own.tolist())
    return np.asarray(own * (mass / together if together > mass else 1.0), np.float64)


def scores_of_rows(start: Ints, column: Ints, share: Floats, coverage: Ints) -> Floats:
    """Score each row `start[i]:start[i + 1]`; a row's score does not depend on the other rows.

    A label with a false share and without a holder counts as if one client held it.
    """
    return np.add.reduceat(share / np.maximum(coverage[column], 1), start[:-1])


def rare_labels_of(named: Sequence[Label] | None, table: LabelTable) -> tuple[Label, ...]:
    """Return the rare labels: those that the user names, otherwise those of low coverage.

    A label has low coverage if at most half as many clients hold it as hold the median label.
    The simulator, the audit, the server and all metrics use this rule.

    >>> table = LabelTable.from_counts({1: {"a": 1, "b": 1}, 2: {"a": 1, "b": 1, "c": 1}})
    >>> rare_labels_of(None, table), rare_labels_of(["a"], table), rare_labels_of([], table)
    (('c',), ('a',), ())
    """
    if named is None:
        coverage = table.coverage().tolist()
        return rare_by_coverage(dict(zip(table.labels, coverage, strict=True)))
    known = {str(label): label for label in table.labels}
    for label in named:
        if str(label) not in known:
            raise BadInput(f"rare label {str(label)!r}: {nearest(str(label), list(known))}")
    return tuple(dict.fromkeys(known[str(label)] for label in named))


def rare_by_coverage(coverage: Mapping[L, float]) -> tuple[L, ...]:
    """Return the labels that at most half as many clients hold as hold the median label.

    >>> rare_by_coverage({"a": 4, "b": 4, "c": 1.5, "d": 3.5})
    ('c',)
    """
    few = np.median(list(coverage.values())) / 2
    return tuple(label for label, count in coverage.items() if count <= few)


def holders(table: LabelTable, labels: Sequence[Label]) -> npt.NDArray[np.bool_]:
    """Return a mask of the clients that hold at least one of the labels."""
    wanted = np.zeros(len(table.labels), np.bool_)
    wanted[[table.labels.index(label) for label in labels]] = True
    inside = np.zeros(len(table), np.bool_)
    inside[table.row_of_entry()[wanted[table.column] & (table.count > 0)]] = True
    return inside
