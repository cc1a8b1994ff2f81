"""The share of the global model that comes from each client and each label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.standing import standing, standing_scale
from fedraw.core.types import ClientId, Label
from fedraw.eventlog.records import ArrivalRecord, InfluenceRule


class LabelInfluence(NamedTuple):
    """The share of the global model that comes from the samples of one label."""

    influence: float  # Λ_l = Σ_i π_i freq(l, i)
    fair_share: float  # the label's share of all samples
    ratio: float  # influence / fair_share; below 1, the label is underrepresented


class Influence:
    """π_i, the mean weight of client i over the aggregations of a log.

    With the rule "cache", N is the number of members at the time of an aggregation. When a client
    leaves, its cached update no longer counts, but its earlier weight stays.
    """

    def __init__(self, clients: int = 0, rule: InfluenceRule = "slots") -> None:
        self._members = clients
        self._rule = rule
        self._aggregations = 0
        self._total: defaultdict[ClientId, float] = defaultdict(float)
        # For the rule "cache": N, the number of aggregations since N last changed, and the first of
        # them that includes each cached client.
        self._clients = clients
        self._span = 0
        self._since: dict[ClientId, int] = {}
        self._gone: set[ClientId] = set()
        # The total weight of each rare client when it became rare; and the total weight that
        # clients, which are no longer rare, had while they were rare.
        self._rare_since: dict[ClientId, float] = {}
        self._rare_once = 0.0
        self._ever_rare = False

    def count_as(self, client: ClientId, rare: bool) -> None:
        """Set whether the client counts as rare from now on; its past weight does not change."""
        if rare:
            self._ever_rare = True
            self._rare_since.setdefault(client, self._total_weight(client))
        elif client in self._rare_since:
            self._rare_once += self._total_weight(client) - self._rare_since.pop(client)

    def _total_weight(self, client: ClientId) -> float:
        return self._aggregations * self.by_client().get(client, 0.0)

    def rare_share(self) -> float | None:
        """Return the share of all weight, in percent, that clients had while they were rare."""
        if not (self._ever_rare and self._aggregations):
            return None
        influence, count = self.by_client(), self._aggregations
        now = sum(influence.get(c, 0.0) - since / count for c, since in self._rare_since.items())
        return 100 * (now + self._rare_once / count)

    def add_founders(self, clients: int) -> None:
        """Add this many initial members."""
        self._members += clients

    def joined(self, client: ClientId) -> None:
        """Add a member."""
        self._members += 1
        self._gone.discard(client)

    def left(self, client: ClientId) -> None:
        """Remove a member."""
        self._members -= 1
        if self._rule == "cache":
            self._settle()
            self._since.pop(client, None)
            self._gone.add(client)  # its last update may still be in the buffer

    def observe(self, arrival: ArrivalRecord) -> None:
        """Add one arrival."""
        if not arrival.aggregated:
            return
        self._aggregations += 1
        if self._rule == "cache":
            if self._clients != self._members:
                self._settle()
            self._span += 1
            for client in arrival.buffer:
                if client not in self._gone:
                    self._since.setdefault(client, self._span)
            return
        total = self._total
        # A user's own strategy may report no weights, or some that are not finite.
        for client, weight in zip(arrival.buffer, arrival.weights, strict=False):
            total[client] += weight or 0.0

    def _settle(self) -> None:
        """Add the weights of the aggregations since N last changed to the totals."""
        for client, first in self._since.items():
            self._total[client] += (self._span - first + 1) / max(1, self._clients)
            self._since[client] = 1
        self._span, self._clients = 0, self._members

    def by_client(self) -> dict[ClientId, float]:
        """Return π_i of every client in any aggregation; empty before the first aggregation."""
        count = self._aggregations
        influence = {client: total / count for client, total in self._total.items()}
        for client, first in self._since.items():
            lately = (self._span - first + 1) / count / max(1, self._clients)
            influence[client] = influence.get(client, 0.0) + lately
        return influence


def label_influence(
    influence: Mapping[ClientId, float], table: LabelTable
) -> dict[Label, LabelInfluence]:
    """Return Λ_l and the fair share of each label.

    >>> table = LabelTable.from_counts({"a": {"cat": 2}, "b": {"cat": 1, "dog": 1}})
    >>> label_influence({"a": 0.75, "b": 0.25}, table)["dog"]
    LabelInfluence(influence=0.125, fair_share=0.25, ratio=0.5)
    """
    weight = np.array([influence.get(client, 0.0) for client in table.clients])
    weighted = weight[table.row_of_entry()] * table.share
    totals = np.bincount(table.column, weights=weighted, minlength=len(table.labels))
    pairs = zip(table.labels, totals.tolist(), table.fair_shares().tolist(), strict=True)
    return {label: LabelInfluence(total, fair, total / fair) for label, total, fair in pairs}


def label_standing(influence: Mapping[ClientId, float], table: LabelTable) -> dict[Label, float]:
    """Return the standing of each label, given the influence of each client so far.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> found = label_standing({"a": 0.5, "b": 0.5}, table)
    >>> round(found["cat"], 2), round(found["dog"], 2)
    (1.32, 0.35)
    """
    weight = np.array([influence.get(client, 0.0) for client in table.clients])
    own = weight[table.row_of_entry()]
    many = len(table.labels)
    weighted = np.bincount(table.column, weights=own * table.share, minlength=many)
    holders = np.bincount(table.column, weights=own, minlength=many)
    found = standing(weighted, holders, standing_scale(table))
    return dict(zip(table.labels, found.tolist(), strict=True))
