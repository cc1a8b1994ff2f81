"""How much of the global model a client, and a label, speaks for: measured from the event log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId, Label

# slots: a client weighs what its slots weigh in an aggregation.
# cache: every member heard so far weighs 1/N, because its last update is part of every step.
Rule = Literal["slots", "cache"]


class LabelInfluence(NamedTuple):
    influence: float  # Λ_l = Σ_i π_i freq(l, i)
    fair_share: float  # the label's share of all samples
    ratio: float  # of the two: below 1 the label speaks for less than its samples


class Influence:
    """π_i, the mean weight of client i over the aggregations of a log.

    N is the number of members at the time of an aggregation. One that leaves takes its cached
    update along; what it has weighed until then, it has weighed.
    """

    def __init__(self, clients: int = 0, rule: Rule = "slots") -> None:
        self._members = clients
        self._rule = rule
        self._aggregations = 0
        self._total: defaultdict[ClientId, float] = defaultdict(float)
        # Of the aggregations since N last changed: what N is, how many, and from which of them on
        # each cached client is part of them.
        self._clients = clients
        self._span = 0
        self._since: dict[ClientId, int] = {}
        self._gone: set[ClientId] = set()
        # What those who are rare had weighed when they became it, and what others did while rare.
        self._rare_since: dict[ClientId, float] = {}
        self._rare_once = 0.0
        self._ever_rare = False

    def count_as(self, client: ClientId, rare: bool) -> None:
        """Whether it is rare from now on; what it has weighed until then, it has weighed."""
        if rare:
            self._ever_rare = True
            self._rare_since.setdefault(client, self._weighed(client))
        elif client in self._rare_since:
            self._rare_once += self._weighed(client) - self._rare_since.pop(client)

    def _weighed(self, client: ClientId) -> float:
        return self._aggregations * self.by_client().get(client, 0.0)

    def of_rare(self) -> float | None:
        """Percent of all weight that clients had while they were rare."""
        if not (self._ever_rare and self._aggregations):
            return None
        influence, count = self.by_client(), self._aggregations
        now = sum(influence.get(c, 0.0) - since / count for c, since in self._rare_since.items())
        return 100 * (now + self._rare_once / count)

    def joined(self, client: ClientId) -> None:
        self._members += 1
        self._gone.discard(client)

    def left(self, client: ClientId) -> None:
        self._members -= 1
        if self._rule == "cache":
            self._settle()
            self._since.pop(client, None)
            self._gone.add(client)  # its last update may still lie in the buffer

    def observe(self, arrival: Mapping[str, Any]) -> None:
        """Take in one record of kind "arrival"."""
        if not arrival["aggregated"]:
            return
        self._aggregations += 1
        if self._rule == "cache":
            if self._clients != self._members:
                self._settle()
            self._span += 1
            for client in arrival["buffer"]:
                if client not in self._gone:
                    self._since.setdefault(client, self._span)
            return
        total = self._total
        for client, weight in zip(arrival["buffer"], arrival["weights"], strict=True):
            total[client] += weight

    def _settle(self) -> None:
        """Add up what was weighed with the old N."""
        for client, first in self._since.items():
            self._total[client] += (self._span - first + 1) / max(1, self._clients)
            self._since[client] = 1
        self._span, self._clients = 0, self._members

    def by_client(self) -> dict[ClientId, float]:
        """π_i of every client that ever weighed anything; empty before the first aggregation."""
        count = self._aggregations
        influence = {client: total / count for client, total in self._total.items()}
        for client, first in self._since.items():
            lately = (self._span - first + 1) / count / max(1, self._clients)
            influence[client] = influence.get(client, 0.0) + lately
        return influence


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
