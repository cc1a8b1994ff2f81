"""Evaluation of the global model on the server's test set, on those of the sites, or on both.

A server cannot check a site's report about its own test set, so it bounds the weight of each site.
A site may test at most MOST_TIMES_DECLARED times as many samples as it declared for training. It
counts for at most ten times the median site, and for at most as much as all other sites together. A
target is reached only if it is reached without any single site, or on the server's own test set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedraw.core.text import several
from fedraw.core.types import InferredLabels, Vector
from fedraw.errors import BadInput
from fedraw.eventlog.metrics import BUILT_IN, fairness_metrics
from fedraw.eventlog.records import EvaluationRecord
from fedraw.server.admission import (
    MOST_LABELS,
    MOST_TIMES_DECLARED,
    check_labels,
    declared_samples,
)
from fedraw.server.results import (
    EvaluationOutput,
    EvaluationResult,
    Metrics,
    Recall,
    checked_metrics,
    combine,
)
from fedraw.server.store import FederationStore
from fedraw.server.tasks import EvaluateReply, Task
from fedraw.storage.snapshot import nbytes

LOGGER = logging.getLogger("fedraw.server")


@dataclass(frozen=True)
class StoppingTarget:
    """A metric's value at which training ends: a lower bound, or an upper bound if `below`."""

    metric: str
    value: float
    below: bool = False

    def reached(self, metrics: Metrics) -> bool:
        """Return whether these metrics reach the target."""
        found = metrics.get(self.metric)
        if found is None:
            return False
        return found <= self.value if self.below else found >= self.value


@dataclass(eq=False)
class TestedModel:
    """A model, and its results on the server's test set and on those of the sites."""

    __test__ = False  # tells pytest that this is not a test class

    version: int
    model: Vector
    central: EvaluationResult | None = None
    local: dict[str, EvaluationResult] = field(default_factory=dict)

    def overall(self, without: str | None = None) -> EvaluationResult:
        """Return the result on the server's test set, if there is one.

        Otherwise return the combined result of the sites, without the site `without`.
        """
        if self.central:
            return self.central
        return combine([result for site, result in self.local.items() if site != without])

    def decisive_site(self, target: StoppingTarget, rare_labels: Collection[str]) -> str | None:
        """Return a site without whose result the target is not reached, or None."""
        if self.central:
            return None
        for site in self.local:
            rest = self.overall(without=site)
            if not target.reached({**rest.recall.metrics(rare_labels), **rest.own}):
                return site
        return None

    def values(
        self,
        rare_labels: Collection[str],
        counts: Mapping[str, Mapping[str, int]],
        federated: bool,
    ) -> dict[str, dict[str, Any]] | None:
        """Return the metrics and the recall by label, or None without any result."""
        overall, rare = self.overall(), set(rare_labels)
        if not overall:
            return None
        metrics = overall.recall.metrics(rare_labels)
        if federated:
            held = [counts.get(site, {}) for site in self.local]
            holders = {i for i, own in enumerate(held) if not rare.isdisjoint(own)}
            accuracies = [result.recall.accuracy for result in self.local.values()]
            metrics.update(fairness_metrics(accuracies, holders))
        recall = _limited(overall.recall.by_label(), rare)
        values: dict[str, dict[str, Any]] = {"metrics": metrics, "recall": recall}
        return values | ({"own": dict(overall.own)} if overall.own else {})


@dataclass
class Evaluation:
    """The evaluation of one version of the model."""

    event: int
    tested: TestedModel
    due: float
    federated: bool
    server_models: float = 0.0  # memory of the strategy's state, in copies of the model
    inferred: InferredLabels | None = None
    final: bool = False
    to_ask: list[str] = field(default_factory=list)
    awaited: dict[int, str] = field(default_factory=dict)  # sites by the number of the task

    @property
    def complete(self) -> bool:
        """Whether all replies have arrived."""
        return not self.to_ask and not self.awaited

    def record(
        self, time: float, rare_labels: Collection[str], counts: Mapping[str, Mapping[str, int]]
    ) -> EvaluationRecord | None:
        """Return the log record, or None if the model has no result."""
        values = self.tested.values(rare_labels, counts, self.federated)
        if values is None:
            return None
        return EvaluationRecord(
            event=self.event,
            time=time,
            version=self.tested.version,
            metrics=values["metrics"],
            recall=values["recall"],
            own=values.get("own"),
            server_models=self.server_models,
            inferred=None if self.inferred is None else self.inferred._asdict(),
            sites=len(self.tested.local) if self.federated else None,
            final=self.final,
        )


class Evaluations:
    """Runs one evaluation at a time, so that no site has two evaluations at once."""

    def __init__(
        self,
        store: FederationStore,
        federated: bool,
        evaluate: Callable[[Vector], EvaluationOutput] | None,
        target: StoppingTarget | None = None,
    ) -> None:
        self.current: Evaluation | None = None
        self._store = store
        self._federated = federated
        self._evaluate = evaluate
        self._target = target
        self._logged: set[str] = set()  # keys of the notes about the target that are logged

    def begin(self, sites: list[str], due: float, now: float, final: bool = False) -> None:
        """Begin an evaluation at these sites, unless one is running.

        `final` says that no further arrival can change the model.
        """
        if self.current is not None:
            return
        state, event = self._store.strategy_state, self._store.state.event
        memory = round(nbytes(state) / state.model.nbytes, 2)
        scorer = self._store.scorer
        inferred = None if scorer is None else scorer.inferred_labels()
        self.current = current = Evaluation(
            event,
            TestedModel(state.version, state.model),
            due,
            self._federated,
            memory,
            inferred,
            final,
        )
        current.tested.central = self._evaluate_centrally(state.model, now)
        current.to_ask = list(sites) if self._federated else []

    def _evaluate_centrally(self, model: Vector, now: float) -> EvaluationResult | None:
        """Evaluate on the server's test set; log a failure and continue."""
        if self._evaluate is None:
            return None
        try:
            return EvaluationResult.of(self._evaluate(model), "the server's evaluation")
        except Exception as problem:
            LOGGER.exception("the server's evaluation failed")
            self._store.note(f"the server's evaluation failed: {problem!r}", now)
            return None

    def add(self, task: Task, reply: EvaluateReply) -> str | None:
        """Add a site's result; return the reason if it is refused, otherwise None."""
        site, current = task.site or "", self.current
        if current is not None:
            current.awaited.pop(task.number, None)
        try:
            result = self._check(site, task, reply)
        except BadInput as refusal:
            self.forget(site)
            return f"no evaluation: {refusal}"
        if current is not None and current.tested.model is task.model:
            current.tested.local[site] = result
        return None

    def _check(self, site: str, task: Task, reply: EvaluateReply) -> EvaluationResult:
        if (reply.site, reply.task) not in ((None, None), (site, task.number)):
            raise BadInput(f"client {site!r} replied in the name of {reply.site!r:.80}")
        for counts in (reply.total, reply.right):
            check_labels(site, counts)
        source = f"client {site!r}"
        recall = Recall(reply.right, reply.total).check(source)
        tested = EvaluationResult(
            recall, checked_metrics(reply.metrics, source), max(0, reply.examples)
        )
        declared = declared_samples(self._store.state.counts.get(site, {}))
        if declared is not None and tested.samples > MOST_TIMES_DECLARED * declared:
            raise BadInput(
                f"client {site!r} tested {tested.samples:.0f} samples and declared {declared} for "
                f"training; a site may test at most {MOST_TIMES_DECLARED} times as many"
            )
        return tested

    def forget(self, site: str) -> None:
        """Stop waiting for the site."""
        current = self.current
        if current is not None:
            current.awaited = {n: other for n, other in current.awaited.items() if other != site}
            current.to_ask = [other for other in current.to_ask if other != site]

    def finish(self, now: float) -> tuple[bool, str | None]:
        """Return whether an evaluation has ended, and a sentence if it reached the target."""
        current, state = self.current, self._store.state
        if current is None or not (current.complete or now >= current.due):
            return False, None
        self.current = None
        time = self._store.time(now)
        record = current.record(time, state.rare_labels, state.counts)
        if record is None:
            return True, None
        self._store.log.note(record)
        self._update_best_model(current, record, now)
        return True, self._target_reached(current, {**record.metrics, **(record.own or {})}, now)

    def _target_reached(self, current: Evaluation, metrics: Metrics, now: float) -> str | None:
        target = self._target
        if target is None:
            return None
        if target.metric not in metrics:
            known = f"this evaluation has {several(metrics, most=20)}"
            self._note_once(f"target_metric = {target.metric!r} was not measured; {known}", now)
            return None
        if not target.reached(metrics):
            return None
        form = ".1f" if target.metric in BUILT_IN else ".4g"
        sentence = f"{target.metric} reached {metrics[target.metric]:{form}}"
        site = current.tested.decisive_site(target, self._store.state.rare_labels)
        if site is None:
            return sentence
        self._note_once(
            f"{sentence}, but not without the result of {site!r}; the target must be reached "
            "without any single site",
            now,
            site,
        )
        return None

    def _note_once(self, text: str, now: float, key: str = "") -> None:
        if key not in self._logged:
            self._logged.add(key)
            self._store.note(text, now)

    def _update_best_model(self, current: Evaluation, record: EvaluationRecord, now: float) -> None:
        try:
            self._store.models.keep_if_best(
                current.tested.model, record, record.metrics, record.recall
            )
        except OSError as problem:
            self._store.note(f"the best model cannot be written: {problem.strerror}", now)


def _limited(recall: Mapping[str, float], rare: Collection[str]) -> dict[str, float]:
    """Return the recall of at most MOST_LABELS labels, rare labels first."""
    if len(recall) <= MOST_LABELS:
        return dict(recall)
    first = sorted(recall, key=lambda label: label not in rare)
    return {label: recall[label] for label in first[:MOST_LABELS]}
