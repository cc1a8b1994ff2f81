"""Results of test sets: recall by label, any other metrics, and how those of sites are combined."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import whole_counts
from fedraw.errors import BadInput
from fedraw.eventlog.summary import BUILT_IN
from fedraw.server.admission import check_metrics


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

    def metrics(self, rare: Collection[str]) -> dict[str, float | None]:
        """GlobalAcc, and AvgRare over the rare labels that were tested."""
        recall = self.by_label()
        known = [recall[label] for label in rare if label in recall]
        return {
            "GlobalAcc": self.accuracy,
            "AvgRare": sum(known) / len(known) if known else None,
        }


# The largest weight of a site relative to the median site.
MOST_TIMES = 10

Metrics = Mapping[str, float | None]
# What a user's own evaluation returns: recall by label, any other metrics, or both.
Found = Recall | Mapping[str, float] | tuple[Recall, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """What one test set shows: recall by label, other metrics, or both."""

    recall: Recall
    own: Metrics = field(default_factory=dict)
    examples: float = 0  # on which `own` rests, if samples are not counted by label

    @classmethod
    def of(cls, found: Found, source: str) -> EvaluationResult:
        """Read and check what an evaluation returns.

        >>> EvaluationResult.of({"auc": 0.75}, "the server's evaluation").own
        {'auc': 0.75}
        """
        recall, own = found if isinstance(found, tuple) else (found, {})
        if isinstance(recall, Mapping):
            return cls(Recall({}, {}), checked_metrics(recall, source))
        if not isinstance(recall, Recall) or not isinstance(own, Mapping):
            raise BadInput(
                f"{source} gives {type(found).__name__}; it has to give a Recall, a mapping from "
                "names of metrics to numbers, or both as a tuple"
            )
        return cls(recall.check(source), checked_metrics(own, source))

    @property
    def samples(self) -> float:
        """How many samples were tested."""
        return sum(self.recall.total.values()) or self.examples

    def __bool__(self) -> bool:
        return bool(self.recall.total or self.own)


def checked_metrics(own: Mapping[str, Any], source: str) -> dict[str, float | None]:
    """Return a user's own metrics as numbers, with None for each that is not finite."""
    for name, value in own.items():
        if name in BUILT_IN:
            raise BadInput(f"{source}: {name!r} is a metric of fedraw's own; choose another name")
        try:
            float(value)
        except (TypeError, ValueError):
            raise BadInput(f"{source}: {name} is {value!r:.60}, not a number") from None
    return check_metrics(source, {str(name): float(value) for name, value in own.items()}) or {}


def weights(samples: Sequence[float]) -> list[float]:
    """Return how many samples each site counts for, so that none counts for too much.

    >>> weights([10, 20, 90])
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
    counted = weights([part.samples for part in parts])
    pairs = list(zip(parts, counted, strict=True))
    recall = Recall.sum(
        part.recall.scaled(n / part.samples) if n < part.samples else part.recall
        for part, n in pairs
    )
    own = {}
    for name in dict.fromkeys(name for part in parts for name in part.own):
        known = [(part.own[name], n) for part, n in pairs if part.own.get(name) is not None]
        total = sum(n for _, n in known)
        own[name] = sum(v * n for v, n in known if v is not None) / total if total else None
    return EvaluationResult(recall, own, sum(counted))
