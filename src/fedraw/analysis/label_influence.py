"""Label influence Λ_l = Σ_i π_i freq(l, i), and the standing of a label that follows from it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import Weighting
from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats, Ints

DENSE_UP_TO = 2 * 10**7


# Where even the median label is held by fewer, no label stands against labels that all hold.
USUAL_COVERAGE = 0.25


class Voices(NamedTuple):
    """By label: its influence as a multiple of the fair share, and its standing (see `verdict`)."""

    influence: Floats
    standing: Floats


class LabelShares:
    """The labels behind the clients, kept so that many weightings can be asked about.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> groups = Groups.of(np.ones(2), np.ones(2), np.zeros(2, bool))
    >>> LabelShares(table, groups, np.ones(2), np.ones(2)).of_clients(np.array([0.5, 0.5]))
    Voices(influence=array([1., 1.]), standing=array([1.32287566, 0.35355339]))
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
            "replay": arrivals,  # those who are replayed are groups of their own
        }
        usual = float(np.median(table.coverage())) / len(table) / USUAL_COVERAGE
        self._scale = float(np.median(self._fair)) * min(1.0, usual)
        self._dense: dict[Weighting, tuple[Floats, Floats]] = {}

    def of_clients(self, influence: Floats) -> Voices:
        """From the influence of every client."""
        own = influence[self._row]
        label_weight = np.bincount(self._column, own * self._share, self._labels)
        return self._voices(label_weight, np.bincount(self._column, own, self._labels))

    def of_groups(self, influence: Floats, weighting: Weighting) -> Voices:
        """From the influence of a mean client of each group."""
        if self._groups.many.size * self._labels > DENSE_UP_TO:
            return self.of_clients(influence[self._groups.of_client] * self._part[weighting])
        if weighting not in self._dense:
            part = self._part[weighting][self._row]
            self._dense[weighting] = self._matrix(self._share * part), self._matrix(part)
        shares, held = self._dense[weighting]
        return self._voices(influence @ shares, influence @ held)

    def _voices(self, label_weight: npt.NDArray[Any], holders: npt.NDArray[Any]) -> Voices:
        weight = np.asarray(label_weight, np.float64)
        return Voices(weight / self._fair, np.sqrt(weight * holders / self._scale))

    def mean_of_holders(self, values: Floats) -> Floats:
        """The mean of a value of the clients over the holders of each label."""
        many = np.bincount(self._column, minlength=self._labels)
        return np.asarray(self.sum_over_holders(values) / many, np.float64)

    def sum_over_holders(self, values: Floats) -> Floats:
        """The sum of a value of the clients over the holders of each label."""
        sums = np.bincount(self._column, values[self._row], self._labels)
        return np.asarray(sums, np.float64)

    def _matrix(self, of_entry: Floats) -> Floats:
        """Groups x labels: the sum over the clients of a group."""
        shape = self._groups.many.size, self._labels
        flat = np.bincount(self._cell, of_entry, shape[0] * shape[1])
        return np.asarray(flat.reshape(shape), np.float64)

    @cached_property
    def _cell(self) -> Ints:
        return self._groups.of_client[self._row] * self._labels + self._column
