"""Label influence Λ_l = Σ_i π_i freq(l, i), as a multiple of the label's fair share."""

from __future__ import annotations

import numpy as np

from fedraw.analysis.groups import Groups
from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats

DENSE_UP_TO = 2 * 10**7


class LabelShares:
    """The labels behind the clients, kept so that many weightings can be asked about.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> groups = Groups.of(np.ones(2), np.ones(2), np.zeros(2, bool))
    >>> LabelShares(table, groups).of_clients(np.array([0.5, 0.5]))
    array([1., 1.])
    """

    def __init__(self, table: LabelTable, groups: Groups) -> None:
        self._labels, self._fair = len(table.labels), table.fair_shares()
        self._row, self._column, self._share = table.row_of_entry(), table.column, table.share
        self._of_client = groups.of_client
        self._dense: Floats | None = None
        if groups.many.size * self._labels <= DENSE_UP_TO:
            key = groups.of_client[self._row] * self._labels + self._column
            flat = np.bincount(key, self._share, groups.many.size * self._labels)
            dense = flat.reshape(groups.many.size, self._labels)
            self._dense = np.asarray(dense, np.float64)

    def of_clients(self, influence: Floats) -> Floats:
        """From the influence of every client."""
        total = np.bincount(self._column, influence[self._row] * self._share, self._labels)
        return np.asarray(total / self._fair, np.float64)

    def of_groups(self, influence: Floats) -> Floats:
        """From the influence of one client of each group."""
        if self._dense is None:
            return self.of_clients(influence[self._of_client])
        return np.asarray(influence @ self._dense / self._fair, np.float64)
