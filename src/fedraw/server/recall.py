"""What an evaluation comes to, on the server's own test set or summed over those of the sites."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import whole_counts
from fedraw.errors import BadInput


@dataclass(frozen=True, eq=False)
class Recall:
    """Of so many test samples of each label, how many were recognised.

    >>> recall = Recall.of(["cat", "cat", "owl"], ["cat", "owl", "owl"])
    >>> recall.metrics(rare=["owl"])
    {'GlobalAcc': 66.66666666666667, 'AvgRare': 100.0}
    """

    right: Mapping[str, float]  # whole numbers, unless they are scaled
    total: Mapping[str, float]

    @classmethod
    def of(cls, labels: npt.ArrayLike, predicted: npt.ArrayLike) -> Recall:
        """From the true label of each sample and the one the model gave it."""
        truth, guess = np.asarray(labels), np.asarray(predicted)
        if truth.shape != guess.shape or truth.ndim != 1:
            raise BadInput(
                f"labels of shape {truth.shape} and predictions of shape {guess.shape} do not "
                "belong together; give one of each for every test sample"
            )
        return cls(Counter(map(str, truth[truth == guess])), Counter(map(str, truth)))

    @classmethod
    def sum(cls, parts: Iterable[Recall]) -> Recall:
        right: defaultdict[str, float] = defaultdict(int)
        total: defaultdict[str, float] = defaultdict(int)
        for part in parts:
            for label, n in part.right.items():
                right[label] += n
            for label, n in part.total.items():
                total[label] += n
        return cls(right, total)

    def scaled(self, factor: float) -> Recall:
        """The same recall of fewer or more samples."""
        right = {label: factor * n for label, n in self.right.items()}
        return Recall(right, {label: factor * n for label, n in self.total.items()})

    def without(self, part: Recall) -> Recall:
        """What is left of a sum when one of its parts is taken out."""
        right = {label: n - part.right.get(label, 0) for label, n in self.right.items()}
        total = {label: n - part.total.get(label, 0) for label, n in self.total.items()}
        return Recall(right, total)

    def check(self, source: str) -> Recall:
        """Refuse what cannot be; labels that were not tested are left out."""
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
        """In percent; None if nothing was tested."""
        tested = sum(self.total.values())
        return 100 * sum(self.right.values()) / tested if tested else None

    def by_label(self) -> dict[str, float]:
        """In percent."""
        return {label: 100 * self.right.get(label, 0) / n for label, n in self.total.items() if n}

    def metrics(self, rare: Collection[str]) -> dict[str, Any]:
        recall = self.by_label()
        known = [recall[label] for label in rare if label in recall]
        return {
            "GlobalAcc": self.accuracy,
            "AvgRare": sum(known) / len(known) if known else None,
        }
