"""What the global model can do: on the server's own test set, on those of the sites, or both.

What a site says about its own test set cannot be checked, so one site's word is bounded. A site may
have tested at most MOST_TESTS times as many samples as it has declared for training. It counts for
at most MOST_TIMES the median site, and for at most as much as all other sites together. A target is
reached only if it would be reached without any single site, or on the server's own test set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from fedraw.core.types import InferredLabels, Vector
from fedraw.errors import BadInput
from fedraw.eventlog.records import EvaluationRecord
from fedraw.metrics.fairness import fairness_metrics
from fedraw.server.admission import MOST_LABELS, check_labels
from fedraw.server.ledger import Ledger
from fedraw.server.membership import NOT_TOLD
from fedraw.server.orders import Evaluated, Order
from fedraw.server.recall import Recall
from fedraw.storage.snapshot import nbytes

LOGGER = logging.getLogger("fedraw.server")

# A site's tests: at most so many times what it has declared for training, and what they count for.
MOST_TESTS, MOST_TIMES = 100, 10


def weigh(parts: Sequence[Recall]) -> list[Recall]:
    """The sites' results, scaled down where one site would count for too much.

    >>> [part.total for part in weigh([Recall({}, {"cat": n}) for n in (10, 20, 90)])]
    [{'cat': 10}, {'cat': 20}, {'cat': 30.0}]
    """
    tested = [sum(part.total.values()) for part in parts]
    known = [n for n in tested if n]
    if len(known) < 2:
        return list(parts)
    most = MOST_TIMES * median_low(known)
    limits = [min(most, sum(known) - n) for n in tested]
    weighed = zip(parts, tested, limits, strict=True)
    return [part if n <= limit else part.scaled(limit / n) for part, n, limit in weighed]


@dataclass
class Evaluation:
    """Of one version of the model; complete when nobody is awaited any more."""

    event: int
    version: int
    model: Vector
    due: float
    federated: bool
    server_models: float = 0.0  # what the strategy's state takes, in copies of the model
    inferred: InferredLabels | None = None
    central: Recall | None = None
    to_ask: list[str] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    local: dict[str, Recall] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.to_ask and not self.awaited

    @property
    def overall(self) -> Recall:
        """On the server's own test set; without one, on those of the sites."""
        return self.central or Recall.sum(weigh(list(self.local.values())))

    def rests_on(self, metric: str, target: float, rare_labels: Collection[str]) -> str | None:
        """The site without which the target is not reached; None if no single site decides."""
        if self.central is not None:
            return None
        overall = self.overall
        weighed = weigh(list(self.local.values()))
        for site, part in zip(self.local, weighed, strict=True):
            reached = overall.without(part).metrics(rare_labels)[metric]
            if reached is None or reached < target:
                return site
        return None

    def record(
        self, time: float, rare_labels: Collection[str], counts: Mapping[str, Mapping[str, int]]
    ) -> EvaluationRecord | None:
        """None if nobody had anything to test on."""
        overall = self.overall
        if not overall.total:
            return None
        metrics, rare = overall.metrics(rare_labels), set(rare_labels)
        if self.federated:
            held = [counts.get(site, {}) for site in self.local]
            holders = {i for i, own in enumerate(held) if not rare.isdisjoint(own)}
            accuracies = [recall.accuracy for recall in self.local.values()]
            metrics.update(fairness_metrics(accuracies, holders))
        return EvaluationRecord(
            event=self.event,
            time=time,
            version=self.version,
            metrics=metrics,
            recall=_bounded(overall.by_label(), rare),
            server_models=self.server_models,
            inferred=None if self.inferred is None else self.inferred._asdict(),
            sites=len(self.local) if self.federated else None,
        )


class Evaluations:
    """One at a time: sites that are still busy with an earlier model are not asked for another."""

    def __init__(
        self, ledger: Ledger, federated: bool, evaluate: Callable[[Vector], Recall] | None
    ) -> None:
        self.current: Evaluation | None = None
        self._ledger = ledger
        self._federated = federated
        self._evaluate = evaluate
        self._told: set[str] = set()  # on whose word alone a target would have been reached

    def begin(self, sites: list[str], due: float, now: float) -> None:
        if self.current is not None:
            return
        state, event = self._ledger.state, self._ledger.book.event
        memory = round(nbytes(state) / state.model.nbytes, 2)
        scorer = self._ledger.scorer
        inferred = None if scorer is None else scorer.inferred_labels()
        self.current = Evaluation(
            event, state.version, state.model, due, self._federated, memory, inferred
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

    def take_in(self, order: Order, answer: Evaluated) -> str | None:
        """Count a site's result, or return the reason why it does not count."""
        site, current = order.site or "", self.current
        self.forget(site)
        try:
            recall = self._check(site, order, answer)
        except BadInput as refusal:
            return f"no evaluation: {refusal}"
        if current is not None and order.version == current.version:
            current.local[site] = recall
        return None

    def _check(self, site: str, order: Order, answer: Evaluated) -> Recall:
        if (answer.site, answer.order) != (site, order.number):
            raise BadInput(f"client {site!r} answered in the name of {answer.site!r:.80}")
        for counts in (answer.total, answer.right):
            check_labels(site, counts)
        recall = Recall(answer.right, answer.total).check(f"client {site!r}")
        declared = self._ledger.book.counts.get(site, {})
        tested, samples = sum(recall.total.values()), sum(declared.values())
        if tested > MOST_TESTS * samples and declared != {NOT_TOLD: 1}:
            raise BadInput(
                f"client {site!r} tested on {tested:.0f} samples and declared {samples} for "
                f"training; at most {MOST_TESTS} times as many count"
            )
        return recall

    def without(self, site: str, reason: str, now: float) -> None:
        self._ledger.note(f"no evaluation: {reason}", now, site)
        self.forget(site)

    def forget(self, site: str) -> None:
        """Nothing more is expected of the site."""
        if self.current is not None:
            self.current.awaited.discard(site)
            self.current.to_ask = [other for other in self.current.to_ask if other != site]

    def finish(self, now: float, metric: str, target: float | None) -> tuple[bool, float | None]:
        """Whether an evaluation has ended, and the value of `metric` if it reached the target."""
        current, book = self.current, self._ledger.book
        if current is None or not (current.complete or now >= current.due):
            return False, None
        self.current = None
        time = self._ledger.time(now)
        record = current.record(time, book.rare_labels, book.counts)
        if record is None:
            return True, None
        self._ledger.log.note(record)
        reached = record.metrics[metric]
        if target is None or reached is None or reached < target:
            return True, None
        site = current.rests_on(metric, target, book.rare_labels)
        if site is None:
            return True, reached
        if site not in self._told:
            self._told.add(site)
            alone = f"{metric} reached {reached:.1f}, but only by the word of {site!r}"
            self._ledger.note(f"{alone}; the target has to be reached without any one site", now)
        return True, None


def _bounded(recall: Mapping[str, float], rare: Collection[str]) -> dict[str, float]:
    """The recall of at most MOST_LABELS labels, rare ones first if there are more."""
    if len(recall) <= MOST_LABELS:
        return dict(recall)
    first = sorted(recall, key=lambda label: label not in rare)
    return {label: recall[label] for label in first[:MOST_LABELS]}
