"""Label influence Λ_l = Σ_i π_i freq(l, i), as a multiple of the label's fair share."""

from __future__ import annotations

import numpy as np

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import Weighting
from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats

DENSE_UP_TO = 2 * 10**7


class LabelShares:
    """The labels behind the clients, kept so that many weightings can be asked about.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> groups = Groups.of(np.ones(2), np.ones(2), np.zeros(2, bool))
    >>> LabelShares(table, groups, np.ones(2), np.ones(2)).of_clients(np.array([0.5, 0.5]))
    array([1., 1.])
    """

    def __init__(self, table: LabelTable, groups: Groups, rate: Floats, score: Floats) -> None:
        self._labels, self._fair = len(table.labels), table.fair_shares()
        self._row, self._column, self._share = table.row_of_entry(), table.column, table.share
        self._groups = groups
        # What a client has of its group's influence, by what its influence rests on.
        arrivals = rate / groups.rate[groups.of_client]
        own = score / groups.score[groups.of_client]
        self._part: dict[Weighting, Floats] = {
            "cached": np.ones(rate.size),
            "uniform": arrivals,
            "rarity": arrivals * own,
        }
        self._dense: dict[Weighting, Floats] = {}

    def of_clients(self, influence: Floats) -> Floats:
        """From the influence of every client."""
        total = np.bincount(self._column, influence[self._row] * self._share, self._labels)
        return np.asarray(total / self._fair, np.float64)

    def of_holders(self, values: Floats) -> Floats:
        """The sum of a value of the clients over the holders of each label."""
        sums = np.bincount(self._column, values[self._row], self._labels)
        return np.asarray(sums, np.float64)

    def of_groups(self, influence: Floats, weighting: Weighting) -> Floats:
        """From the influence of a mean client of each group."""
        if self._groups.many.size * self._labels > DENSE_UP_TO:
            return self.of_clients(influence[self._groups.of_client] * self._part[weighting])
        if weighting not in self._dense:
            self._dense[weighting] = self._matrix(self._part[weighting])
        return np.asarray(influence @ self._dense[weighting] / self._fair, np.float64)

    def _matrix(self, part: Floats) -> Floats:
        """Groups x labels: the labels' shares of the clients of a group, taken together."""
        shape = self._groups.many.size, self._labels
        key = self._groups.of_client[self._row] * self._labels + self._column
        flat = np.bincount(key, self._share * part[self._row], shape[0] * shape[1])
        return np.asarray(flat.reshape(shape), np.float64)
