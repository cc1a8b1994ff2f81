"""How much of the global model a client, and a label, speaks for: measured from the event log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId, Label

# slots: a client weighs what its slots weigh in an aggregation.
# cache: every client heard so far weighs 1/N, because its last update is part of every step.
Rule = Literal["slots", "cache"]


class LabelInfluence(NamedTuple):
    influence: float  # Λ_l = Σ_i π_i freq(l, i)
    fair_share: float  # the label's share of all samples
    ratio: float  # of the two: below 1 the label speaks for less than its samples


class Influence:
    """π_i, the mean weight of client i over the aggregations of a log."""

    def __init__(self, clients: int, rule: Rule = "slots") -> None:
        self._clients = clients
        self._rule = rule
        self._aggregations = 0
        self._total: defaultdict[ClientId, float] = defaultdict(float)
        self._first_heard: dict[ClientId, int] = {}

    def observe(self, arrival: Mapping[str, Any]) -> None:
        """Take in one record of kind "arrival"."""
        if not arrival["aggregated"]:
            return
        self._aggregations += 1
        if self._rule == "cache":
            for client in arrival["buffer"]:
                self._first_heard.setdefault(client, self._aggregations)
            return
        total = self._total
        for client, weight in zip(arrival["buffer"], arrival["weights"], strict=True):
            total[client] += weight

    def by_client(self) -> dict[ClientId, float]:
        """π_i of every client that ever weighed anything; empty before the first aggregation."""
        count = self._aggregations
        if self._rule == "cache":
            heard = self._first_heard.items()
            return {c: (count - first + 1) / count / self._clients for c, first in heard}
        return {client: total / count for client, total in self._total.items()}


def label_influence(
    influence: Mapping[ClientId, float], table: LabelTable
) -> dict[Label, LabelInfluence]:
    """Λ_l of each label against its fair share.

    >>> table = LabelTable.from_counts({"a": {"cat": 2}, "b": {"cat": 1, "dog": 1}})
    >>> label_influence({"a": 0.75, "b": 0.25}, table)["dog"]
    LabelInfluence(influence=0.125, fair_share=0.25, ratio=0.5)
    """
    weight = np.array([influence.get(client, 0.0) for client in table.clients])
    spoken = weight[table.row_of_entry()] * table.share
    totals = np.bincount(table.column, weights=spoken, minlength=len(table.labels))
    pairs = zip(table.labels, totals.tolist(), table.fair_shares().tolist(), strict=True)
    return {label: LabelInfluence(total, fair, total / fair) for label, total, fair in pairs}


def group_influence(influence: Mapping[ClientId, float], group: Iterable[ClientId]) -> float:
    """Percent of all weight that a group of clients has."""
    return 100 * sum(influence.get(client, 0.0) for client in group)
