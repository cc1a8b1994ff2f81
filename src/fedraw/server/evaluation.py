"""Evaluation of the global model on the server's test set, on those of the sites, or on both.

A server cannot check what a site reports about its own test set, so it bounds what one site counts
for. A site may test at most MOST_TESTS times as many samples as it declared for training. It counts
for at most MOST_TIMES the median site, and for at most as much as all other sites together. A
target is reached only if it would be reached without any single site, or on the server's own test
set.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import whole_counts
from fedraw.core.types import InferredLabels, Vector
from fedraw.errors import BadInput
from fedraw.eventlog.records import EvaluationRecord
from fedraw.metrics.fairness import fairness_metrics
from fedraw.server.admission import MOST_LABELS, check_labels
from fedraw.server.membership import UNDECLARED
from fedraw.server.store import FederationStore
from fedraw.server.tasks import EvaluateReply, Task
from fedraw.storage.snapshot import nbytes


@dataclass(frozen=True, eq=False)
class Recall:
    """How many test samples of each label were recognised, out of how many.

    >>> recall = Recall.of(["cat", "cat", "owl"], ["cat", "owl", "owl"])
    >>> recall.metrics(rare=["owl"])
    {'GlobalAcc': 66.66666666666667, 'AvgRare': 100.0}
    """

    right: Mapping[str, float]  # integers unless they are scaled
    total: Mapping[str, float]

    @classmethod
    def of(cls, labels: npt.ArrayLike, predicted: npt.ArrayLike) -> Recall:
        """Count from the true and the predicted label of each sample."""
        truth, guess = np.asarray(labels), np.asarray(predicted)
        if truth.shape != guess.shape or truth.ndim != 1:
            raise BadInput(
                f"labels of shape {truth.shape} and predictions of shape {guess.shape} do not "
                "belong together; give one of each for every test sample"
            )
        return cls(Counter(map(str, truth[truth == guess])), Counter(map(str, truth)))

    @classmethod
    def sum(cls, parts: Iterable[Recall]) -> Recall:
        """Add several results."""
        right: defaultdict[str, float] = defaultdict(int)
        total: defaultdict[str, float] = defaultdict(int)
        for part in parts:
            for label, n in part.right.items():
                right[label] += n
            for label, n in part.total.items():
                total[label] += n
        return cls(right, total)

    def scaled(self, factor: float) -> Recall:
        """Return the same recall on fewer or more samples."""
        right = {label: factor * n for label, n in self.right.items()}
        return Recall(right, {label: factor * n for label, n in self.total.items()})

    def without(self, part: Recall) -> Recall:
        """Subtract one part of a sum."""
        right = {label: n - part.right.get(label, 0) for label, n in self.right.items()}
        total = {label: n - part.total.get(label, 0) for label, n in self.total.items()}
        return Recall(right, total)

    def check(self, source: str) -> Recall:
        """Refuse impossible counts; return the result without untested labels."""
        right = whole_counts(list(self.right.values()), lambda i: f"{source}: recognised")
        total = whole_counts(list(self.total.values()), lambda i: f"{source}: tested")
        tested = {str(k): n for k, n in zip(self.total, total.tolist(), strict=True) if n}
        known = {str(k): n for k, n in zip(self.right, right.tolist(), strict=True) if n}
        for label, count in known.items():
            if count > tested.get(label, 0):
                raise BadInput(
                    f"{source}: {count} samples of label {label!r} recognised, of "
                    f"{tested.get(label, 0)} tested"
                )
        return Recall(known, tested)

    @property
    def accuracy(self) -> float | None:
        """The share of all samples recognised, in percent; None if nothing was tested."""
        tested = sum(self.total.values())
        return 100 * sum(self.right.values()) / tested if tested else None

    def by_label(self) -> dict[str, float]:
        """The recall of each tested label, in percent."""
        return {label: 100 * self.right.get(label, 0) / n for label, n in self.total.items() if n}

    def metrics(self, rare: Collection[str]) -> dict[str, Any]:
        """GlobalAcc, and AvgRare over the rare labels that were tested."""
        recall = self.by_label()
        known = [recall[label] for label in rare if label in recall]
        return {
            "GlobalAcc": self.accuracy,
            "AvgRare": sum(known) / len(known) if known else None,
        }


LOGGER = logging.getLogger("fedraw.server")

# The most test samples of a site relative to its declared training samples, and its largest weight
# relative to the median site.
MOST_TESTS, MOST_TIMES = 100, 10


def weigh(parts: Sequence[Recall]) -> list[Recall]:
    """Scale down the results of sites that would count for too much.

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


@dataclass(eq=False)
class TestedModel:
    """A model, and its results on the server's test set and on those of the sites."""

    __test__ = False  # not a test class, whatever its name begins with

    version: int
    model: Vector
    central: Recall | None = None
    local: dict[str, Recall] = field(default_factory=dict)

    @property
    def overall(self) -> Recall:
        """The result on the server's test set; without one, on those of the sites."""
        return self.central or Recall.sum(weigh(list(self.local.values())))

    def rests_on(self, metric: str, target: float, rare_labels: Collection[str]) -> str | None:
        """Return a site without which the target is not reached, or None."""
        if self.central is not None:
            return None
        overall = self.overall
        weighed = weigh(list(self.local.values()))
        for site, part in zip(self.local, weighed, strict=True):
            reached = overall.without(part).metrics(rare_labels)[metric]
            if reached is None or reached < target:
                return site
        return None

    def values(
        self,
        rare_labels: Collection[str],
        counts: Mapping[str, Mapping[str, int]],
        federated: bool,
    ) -> dict[str, dict[str, Any]] | None:
        """Return the metrics and the recall by label, or None if nobody tested anything."""
        overall, rare = self.overall, set(rare_labels)
        if not overall.total:
            return None
        metrics = overall.metrics(rare_labels)
        if federated:
            held = [counts.get(site, {}) for site in self.local]
            holders = {i for i, own in enumerate(held) if not rare.isdisjoint(own)}
            accuracies = [recall.accuracy for recall in self.local.values()]
            metrics.update(fairness_metrics(accuracies, holders))
        return {"metrics": metrics, "recall": _bounded(overall.by_label(), rare)}


@dataclass
class Evaluation:
    """The evaluation of one version of the model, and of the average that is served."""

    event: int
    last: TestedModel
    serving: TestedModel | None
    due: float
    federated: bool
    server_models: float = 0.0  # memory of the strategy's state, in copies of the model
    inferred: InferredLabels | None = None
    to_ask: list[str] = field(default_factory=list)
    awaited: dict[int, str] = field(default_factory=dict)  # sites by the number of the task

    @property
    def tested(self) -> list[TestedModel]:
        """Every model that is evaluated."""
        return [self.last] if self.serving is None else [self.last, self.serving]

    @property
    def complete(self) -> bool:
        """Whether no reply is awaited any more."""
        return not self.to_ask and not self.awaited

    def record(
        self, time: float, rare_labels: Collection[str], counts: Mapping[str, Mapping[str, int]]
    ) -> EvaluationRecord | None:
        """Return the log record, or None if nobody tested the last model."""
        values = self.last.values(rare_labels, counts, self.federated)
        if values is None:
            return None
        average = None
        if self.serving is not None:
            average = self.serving.values(rare_labels, counts, self.federated)
        return EvaluationRecord(
            event=self.event,
            time=time,
            version=self.last.version,
            metrics=values["metrics"],
            recall=values["recall"],
            server_models=self.server_models,
            inferred=None if self.inferred is None else self.inferred._asdict(),
            sites=len(self.last.local) if self.federated else None,
            serving=average,
        )


class Evaluations:
    """Runs one evaluation at a time, so that no site is asked twice at once."""

    def __init__(
        self, store: FederationStore, federated: bool, evaluate: Callable[[Vector], Recall] | None
    ) -> None:
        self.current: Evaluation | None = None
        self._store = store
        self._federated = federated
        self._evaluate = evaluate
        self._logged: set[str] = set()  # sites that alone would have reached the target

    def begin(self, sites: list[str], due: float, now: float) -> None:
        """Begin an evaluation unless one is running; `sites` are asked to take part."""
        if self.current is not None:
            return
        state, event = self._store.strategy_state, self._store.state.event
        memory = round(nbytes(state) / state.model.nbytes, 2)
        scorer = self._store.scorer
        inferred = None if scorer is None else scorer.inferred_labels()
        average = self._store.serving
        self.current = current = Evaluation(
            event,
            TestedModel(state.version, state.model),
            # A copy, because arrivals change the average while sites test it.
            None if average is None else TestedModel(state.version, average.model.copy()),
            due,
            self._federated,
            memory,
            inferred,
        )
        for tested in current.tested:
            tested.central = self._central(tested.model, now)
        current.to_ask = list(sites) if self._federated else []

    def _central(self, model: Vector, now: float) -> Recall | None:
        """Evaluate on the server's test set; a failure is logged and ends nothing."""
        if self._evaluate is None:
            return None
        try:
            return self._evaluate(model).check("the server's evaluation")
        except Exception as problem:
            LOGGER.exception("the server's evaluation failed")
            self._store.note(f"the server's evaluation failed: {problem!r}", now)
            return None

    def add(self, task: Task, reply: EvaluateReply) -> str | None:
        """Add a site's result, or return the reason why it does not count."""
        site, current = task.site or "", self.current
        if current is not None:
            current.awaited.pop(task.number, None)
        try:
            recall = self._check(site, task, reply)
        except BadInput as refusal:
            self.forget(site)
            return f"no evaluation: {refusal}"
        for tested in () if current is None else current.tested:
            if tested.model is task.model:
                tested.local[site] = recall
        return None

    def _check(self, site: str, task: Task, reply: EvaluateReply) -> Recall:
        if (reply.site, reply.task) != (site, task.number):
            raise BadInput(f"client {site!r} answered in the name of {reply.site!r:.80}")
        for counts in (reply.total, reply.right):
            check_labels(site, counts)
        recall = Recall(reply.right, reply.total).check(f"client {site!r}")
        declared = self._store.state.counts.get(site, {})
        tested, samples = sum(recall.total.values()), sum(declared.values())
        if tested > MOST_TESTS * samples and declared != {UNDECLARED: 1}:
            raise BadInput(
                f"client {site!r} tested on {tested:.0f} samples and declared {samples} for "
                f"training; at most {MOST_TESTS} times as many count"
            )
        return recall

    def fail(self, site: str, reason: str, now: float) -> None:
        """Continue without a site that could not evaluate."""
        self._store.note(f"no evaluation: {reason}", now, site)
        self.forget(site)

    def forget(self, site: str) -> None:
        """Stop waiting for the site."""
        current = self.current
        if current is not None:
            current.awaited = {n: other for n, other in current.awaited.items() if other != site}
            current.to_ask = [other for other in current.to_ask if other != site]

    def finish(self, now: float, metric: str, target: float | None) -> tuple[bool, float | None]:
        """Return whether an evaluation has ended, and `metric` if it reached the target."""
        current, state = self.current, self._store.state
        if current is None or not (current.complete or now >= current.due):
            return False, None
        self.current = None
        time = self._store.time(now)
        record = current.record(time, state.rare_labels, state.counts)
        if record is None:
            return True, None
        self._store.log.note(record)
        self._keep_if_best(current, record, now)
        reached = record.metrics[metric]
        if target is None or reached is None or reached < target:
            return True, None
        site = current.last.rests_on(metric, target, state.rare_labels)
        if site is None:
            return True, reached
        if site not in self._logged:
            self._logged.add(site)
            alone = f"{metric} reached {reached:.1f}, but only by the word of {site!r}"
            self._store.note(f"{alone}; the target has to be reached without any one site", now)
        return True, None

    def _keep_if_best(self, current: Evaluation, record: EvaluationRecord, now: float) -> None:
        models, average = self._store.models, current.serving
        try:
            models.evaluated("current", current.last.model, record, record.metrics, record.recall)
            if average is not None and record.serving is not None:
                models.evaluated("serving", average.model, record, **record.serving)
        except OSError as problem:
            self._store.note(f"the best model cannot be written: {problem.strerror}", now)


def _bounded(recall: Mapping[str, float], rare: Collection[str]) -> dict[str, float]:
    """Return the recall of at most MOST_LABELS labels, rare ones first."""
    if len(recall) <= MOST_LABELS:
        return dict(recall)
    first = sorted(recall, key=lambda label: label not in rare)
    return {label: recall[label] for label in first[:MOST_LABELS]}
