"""What the global model can do: on the server's own test set, on those of the sites, or both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fedraw.core.types import Vector
from fedraw.core.witness import Inferred
from fedraw.disk.event_log import Record, inferred_record
from fedraw.disk.snapshot import nbytes
from fedraw.errors import BadInput
from fedraw.metrics.fairness import fairness_metrics
from fedraw.server.ledger import Ledger
from fedraw.server.orders import Evaluated, Order
from fedraw.server.recall import Recall
from fedraw.strategies.strategy import inferred

LOGGER = logging.getLogger("fedraw.server")


@dataclass
class Evaluation:
    """Of one version of the model; complete when nobody is awaited any more."""

    event: int
    version: int
    model: Vector
    due: float
    federated: bool
    server_models: float = 0.0  # what the strategy's state takes, in copies of the model
    inferred: Inferred | None = None
    central: Recall | None = None
    to_ask: list[str] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    local: dict[str, Recall] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.to_ask and not self.awaited

    def record(
        self, rare_labels: Collection[str], counts: Mapping[str, Mapping[str, int]]
    ) -> Record | None:
        """None if nobody had anything to test on. Without a test set here, the sites' count."""
        overall = self.central or Recall.sum(self.local.values())
        if not overall.total:
            return None
        metrics = overall.metrics(rare_labels)
        if self.federated:
            rare = set(rare_labels)
            held = [counts.get(site, {}) for site in self.local]
            holders = {i for i, own in enumerate(held) if not rare.isdisjoint(own)}
            accuracies = [recall.accuracy for recall in self.local.values()]
            metrics.update(fairness_metrics(accuracies, holders))
        return {
            "kind": "evaluation",
            "event": self.event,
            "version": self.version,
            "metrics": metrics,
            "recall": overall.by_label(),
            "server_models": self.server_models,
            **inferred_record(self.inferred),
            **({"sites": len(self.local)} if self.federated else {}),
        }


class Evaluations:
    """One at a time: sites that are still busy with an earlier model are not asked for another."""

    def __init__(
        self, ledger: Ledger, federated: bool, evaluate: Callable[[Vector], Recall] | None
    ) -> None:
        self.current: Evaluation | None = None
        self._ledger = ledger
        self._federated = federated
        self._evaluate = evaluate

    def begin(self, sites: list[str], due: float, now: float) -> None:
        if self.current is not None:
            return
        state, event = self._ledger.state, self._ledger.book.event
        memory = round(nbytes(state) / state.model.nbytes, 2)
        self.current = Evaluation(
            event, state.version, state.model, due, self._federated, memory, inferred(state)
        )
        self.current.central = self._central(state.model, now)
        self.current.to_ask = list(sites) if self._federated else []

    def _central(self, model: Vector, now: float) -> Recall | None:
        """On the server's own test set; its failure must not end a federation of weeks."""
        if self._evaluate is None:
            return None
        try:
            return self._evaluate(model).check("the server's evaluation")
        except Exception as problem:
            LOGGER.exception("the server's evaluation failed")
            self._ledger.note(f"the server's evaluation failed: {problem!r}", now)
            return None

    def take_in(self, order: Order, answer: Evaluated, now: float) -> None:
        site, current = order.site or "", self.current
        try:
            if (answer.site, answer.order) != (site, order.number):
                raise BadInput(f"client {site!r} answered in the name of {answer.site!r}")
            recall = Recall(answer.right, answer.total).check(f"client {site!r}")
        except BadInput as refusal:
            self.without(site, str(refusal), now)
            return
        if current is not None and order.version == current.version:
            current.local[site] = recall
        self.forget(site)

    def without(self, site: str, reason: str, now: float) -> None:
        self._ledger.note(f"no evaluation: {reason}", now, site)
        self.forget(site)

    def forget(self, site: str) -> None:
        """Nothing more is expected of the site."""
        if self.current is not None:
            self.current.awaited.discard(site)
            self.current.to_ask = [other for other in self.current.to_ask if other != site]

    def finish(self, now: float) -> tuple[bool, Record | None]:
        """Whether one has come to its end, and its record, which is then in the log."""
        current, book = self.current, self._ledger.book
        if current is None or not (current.complete or now >= current.due):
            return False, None
        self.current = None
        record = current.record(book.rare_labels, book.counts)
        if record is not None:
            self._ledger.log.note(record)
        return True, record
