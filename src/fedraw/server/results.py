"""Results on test sets: recall by label, other metrics, and how to combine those of sites."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import whole_counts
from fedraw.errors import BadInput
from fedraw.eventlog.metrics import BUILT_IN
from fedraw.server.admission import check_metrics


@dataclass(frozen=True, eq=False)
class Recall:
    """The number of correctly classified test samples of each label, and of all test samples.

    >>> recall = Recall.of(["cat", "cat", "owl"], ["cat", "owl", "owl"])
    >>> recall.metrics(rare=["owl"])
    {'GlobalAcc': 66.66666666666667, 'AvgRare': 100.0}
    """

    right: Mapping[str, float]  # integers unless they are scaled
    total: Mapping[str, float]

    @classmethod
    def of(cls, labels: npt.ArrayLike, predicted: npt.ArrayLike) -> Recall:
        """Count the true and the predicted label of each sample."""
        truth, guess = np.asarray(labels), np.asarray(predicted)
        if truth.shape != guess.shape or truth.ndim != 1:
            raise BadInput(
                f"labels of shape {truth.shape} and predictions of shape {guess.shape} do not "
                "match; give one label and one prediction for every test sample"
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
        """Return the same recall with all sample counts multiplied by a factor."""
        right = {label: factor * n for label, n in self.right.items()}
        return Recall(right, {label: factor * n for label, n in self.total.items()})

    def check(self, source: str) -> Recall:
        """Refuse impossible counts; return the recall without untested labels."""
        right = whole_counts(list(self.right.values()), lambda i: f"{source}: right")
        total = whole_counts(list(self.total.values()), lambda i: f"{source}: total")
        tested = {str(k): n for k, n in zip(self.total, total.tolist(), strict=True) if n}
        known = {str(k): n for k, n in zip(self.right, right.tolist(), strict=True) if n}
        for label, count in known.items():
            if count > tested.get(label, 0):
                raise BadInput(
                    f"{source}: right has {count} samples of label {label!r}, but total has "
                    f"{tested.get(label, 0)}"
                )
        return Recall(known, tested)

    @property
    def accuracy(self) -> float | None:
        """The accuracy over all samples, in percent; None without samples."""
        tested = sum(self.total.values())
        return 100 * sum(self.right.values()) / tested if tested else None

    def by_label(self) -> dict[str, float]:
        """Return the recall of each tested label, in percent."""
        return {label: 100 * self.right.get(label, 0) / n for label, n in self.total.items() if n}

    def metrics(self, rare: Collection[str]) -> dict[str, float | None]:
        """Return GlobalAcc, and AvgRare over the tested rare labels."""
        recall = self.by_label()
        known = [recall[label] for label in rare if label in recall]
        return {
            "GlobalAcc": self.accuracy,
            "AvgRare": sum(known) / len(known) if known else None,
        }


# The largest weight of a site relative to the median site.
MOST_TIMES = 10

Metrics = Mapping[str, float | None]
# The return value of a user's evaluation function: recall by label, other metrics, or both.
EvaluationOutput = Recall | Mapping[str, float] | tuple[Recall, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The result on one test set: recall by label, other metrics, or both."""

    recall: Recall
    own: Metrics = field(default_factory=dict)
    examples: float = 0  # the samples behind `own`, if samples are not counted by label

    @classmethod
    def of(cls, found: EvaluationOutput, source: str) -> EvaluationResult:
        """Check and convert the return value of an evaluation function.

        >>> EvaluationResult.of({"auc": 0.75}, "the server's evaluation").own
        {'auc': 0.75}
        """
        recall, own = found if isinstance(found, tuple) else (found, {})
        if isinstance(recall, Mapping):
            return cls(Recall({}, {}), checked_metrics(recall, source))
        if not isinstance(recall, Recall) or not isinstance(own, Mapping):
            raise BadInput(
                f"{source} returns {type(found).__name__}; it must return a Recall, a mapping from "
                "names of metrics to numbers, or both as a tuple"
            )
        return cls(recall.check(source), checked_metrics(own, source))

    @property
    def samples(self) -> float:
        """The number of tested samples."""
        return sum(self.recall.total.values()) or self.examples

    def __bool__(self) -> bool:
        return bool(self.recall.total or self.own)


def checked_metrics(own: Mapping[str, Any], source: str) -> dict[str, float | None]:
    """Return a user's own metrics as numbers, with None for values that are not finite."""
    for name, value in own.items():
        if name in BUILT_IN:
            raise BadInput(f"{source}: {name!r} is a metric of fedraw; choose another name")
        try:
            float(value)
        except (TypeError, ValueError):
            raise BadInput(f"{source}: {name} is {value!r:.60}, not a number") from None
    return check_metrics(source, {str(name): float(value) for name, value in own.items()}) or {}


def capped_samples(samples: Sequence[float]) -> list[float]:
    """Return the number of samples for which each site counts.

    A site counts for at most MOST_TIMES the median site, and for at most as much as all others.

    >>> capped_samples([10, 20, 90])
    [10, 20, 30]
    """
    known = [n for n in samples if n]
    if len(known) < 2:
        return list(samples)
    most = MOST_TIMES * median_low(known)
    return [min(n, most, sum(known) - n) for n in samples]


def combine(parts: Sequence[EvaluationResult]) -> EvaluationResult:
    """Combine the results of sites: recall of all samples, and the weighted mean of each metric.

    >>> auc = [EvaluationResult(Recall({}, {}), {"auc": v}, n) for v, n in ((0.9, 10), (0.5, 30))]
    >>> combine(auc).own  # the second site counts as much as the first
    {'auc': 0.7}
    """
    counted = capped_samples([part.samples for part in parts])
    pairs = list(zip(parts, counted, strict=True))
    recall = Recall.sum(
        part.recall.scaled(n / part.samples) if n < part.samples else part.recall
        for part, n in pairs
    )
    own = {}
    for name in dict.fromkeys(name for part in parts for name in part.own):
        values = [(part.own.get(name), n) for part, n in pairs]
        own[name] = _mean([(value, n) for value, n in values if value is not None])
    return EvaluationResult(recall, own, sum(counted))


def _mean(values: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values, each with its weight; None without weight, or if not finite.

    The weights are divided first, because the product of a large value and a weight can overflow.
    """
    total = sum(weight for _, weight in values)
    if not total:
        return None
    mean = sum(value * (weight / total) for value, weight in values)
    return mean if isfinite(mean) else None
