"""Label influence Λ_l = Σ_i π_i freq(l, i), and the standing of a label that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.auditing.influence import influence
from fedraw.auditing.methods import DEBT_TARGET, Rule, Weighting
from fedraw.auditing.presence import Groups, wanted_shares
from fedraw.core.labels import LabelTable
from fedraw.core.standing import standing, standing_scale
from fedraw.core.types import Floats, Ints

DENSE_UP_TO = 2 * 10**7  # cells of a matrix of groups and labels
DRAWS = 60  # of the rates, if the times are estimates
NORMAL = 1.96  # 95 % of a normal distribution is within this many standard deviations


class LabelStandings(NamedTuple):
    """The influence of each label as a multiple of its fair share, and its standing."""

    influence: Floats
    standing: Floats


class LabelWeights:
    """Turns the influence of clients, or of groups of clients, into that of labels.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> groups = Groups.of(np.ones(2), np.ones(2), np.zeros(2, bool))
    >>> LabelWeights(table, groups, np.ones(2), np.ones(2)).of_clients(np.array([0.5, 0.5]))
    LabelStandings(influence=array([1., 1.]), standing=array([1.32287566, 0.35355339]))
    """

    def __init__(self, table: LabelTable, groups: Groups, rate: Floats, score: Floats) -> None:
        self._labels, self._fair = len(table.labels), table.fair_shares()
        self._row, self._column, self._share = table.row_of_entry(), table.column, table.share
        self._groups = groups
        # A client's part of its group's influence, by weighting.
        arrivals = rate / groups.rate[groups.of_client]
        expected = rate.size * rate / rate.sum()  # arrivals among as many as there are clients
        recently = -np.expm1(-expected)
        own = score / groups.score[groups.of_client]
        self._part: dict[Weighting, Floats] = {
            "cached": np.ones(rate.size),
            "uniform": arrivals,
            "samples": _part(table.totals().astype(np.float64), groups.of_client),
            "rarity": arrivals * own,
            "replay": arrivals,  # replayed clients are groups of one
            "debt": _part(wanted_shares(score, table.totals(), DEBT_TARGET), groups.of_client),
            "intervals": arrivals,  # with this many clients, each is in few steps
            "corrected": np.ones(rate.size),
            "staleness": np.ones(rate.size),
            "contact": _part(recently, groups.of_client),
            "started": _part(recently - expected * np.exp(-expected), groups.of_client),
        }
        self._scale = standing_scale(table)
        self._dense: dict[Weighting, tuple[Floats, Floats]] = {}

    def of_clients(self, influence: Floats) -> LabelStandings:
        """Compute influence and standing of all labels from the influence of every client."""
        own = influence[self._row]
        label_weight = np.bincount(self._column, own * self._share, self._labels)
        return self._standings(label_weight, np.bincount(self._column, own, self._labels))

    def of_groups(self, influence: Floats, weighting: Weighting) -> LabelStandings:
        """Compute them from the influence of one client in each group."""
        if self._groups.many.size * self._labels > DENSE_UP_TO:
            return self.of_clients(influence[self._groups.of_client] * self._part[weighting])
        if weighting not in self._dense:
            part = self._part[weighting][self._row]
            self._dense[weighting] = self._matrix(self._share * part), self._matrix(part)
        shares, held = self._dense[weighting]
        return self._standings(influence @ shares, influence @ held)

    def _standings(
        self, label_weight: npt.NDArray[Any], holders: npt.NDArray[Any]
    ) -> LabelStandings:
        weight = np.asarray(label_weight, np.float64)
        return LabelStandings(weight / self._fair, standing(weight, holders, self._scale))

    def mean_of_holders(self, values: Floats) -> Floats:
        """Return the mean of a client value over the holders of each label."""
        many = np.bincount(self._column, minlength=self._labels)
        return np.asarray(self.sum_over_holders(values) / many, np.float64)

    def sum_over_holders(self, values: Floats) -> Floats:
        """Return the sum of a client value over the holders of each label."""
        sums = np.bincount(self._column, values[self._row], self._labels)
        return np.asarray(sums, np.float64)

    def _matrix(self, of_entry: Floats) -> Floats:
        """Sum over the clients of each group; return a matrix of groups and labels."""
        shape = self._groups.many.size, self._labels
        flat = np.bincount(self._cell, of_entry, shape[0] * shape[1])
        return np.asarray(flat.reshape(shape), np.float64)

    @cached_property
    def _cell(self) -> Ints:
        return self._groups.of_client[self._row] * self._labels + self._column


def _part(values: Floats, group: Ints) -> Floats:
    """Divide each value by the mean of its group."""
    mean = np.bincount(group, values) / np.maximum(np.bincount(group), 1)
    return np.asarray(values / mean[group], np.float64)


@dataclass(frozen=True, eq=False)
class StandingInterval:
    """95 % intervals of the standing of every label."""

    low: Floats
    high: Floats


def standing_intervals(
    groups: Groups,
    labels: LabelWeights,
    size: int,
    rules: Mapping[str, Rule],
    seconds: Floats,
    interval: tuple[Floats, Floats] | None,
) -> dict[str, StandingInterval] | None:
    """Draw rates from log-normal distributions around the estimates and take percentiles.

    `interval` has the ends of a 95 % interval of each client's time. Without it the times are
    exact, and the result is None.
    """
    if interval is None:
        return None
    rng = np.random.default_rng(0)
    spread = _log_spread(seconds, *interval)
    # A group's rate is the mean of its clients' rates, so their errors average out.
    of_group = np.sqrt(np.bincount(groups.of_client, spread**2)) / groups.many
    drawn: dict[str, list[Floats]] = {method: [] for method in rules}
    for _ in range(DRAWS):
        varied = replace(
            groups, rate=groups.rate * np.exp(of_group * rng.standard_normal(of_group.size))
        )
        for method, rule in rules.items():
            found = influence(varied, size, rule)
            drawn[method].append(labels.of_groups(found, rule.weighting).standing)
    return {
        method: StandingInterval(*np.percentile(draws, [2.5, 97.5], axis=0))
        for method, draws in drawn.items()
    }


def _log_spread(seconds: Floats, low: Floats, high: Floats) -> Floats:
    """Return the standard deviation of log seconds; an infinite upper end is not used."""
    below = np.log(seconds / low)
    above = np.log(np.where(np.isfinite(high), high, seconds**2 / low) / seconds)
    return np.asarray((below + above) / (2 * NORMAL), np.float64)
