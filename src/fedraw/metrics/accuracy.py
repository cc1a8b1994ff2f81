"""Measures how well the global model recognises the labels, the rare ones in particular.

Everything here is NumPy only; the tests compare the scores with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fedraw.core.types import Floats, Ints

# A model has collapsed if its mean recall is less than this share of the way from chance to 100 %.
# The lowest of the 1,503 evaluated runs in studies/results/cpu is 0.137 of the way.
COLLAPSED_BELOW = 0.05


def has_collapsed(recall: Iterable[float | None]) -> bool:
    """Return whether a model is no better than chance, given the recall of each label in percent.

    The mean recall over the n labels of the test set is 100/n for a model that always predicts the
    same label, however common that label is, and for a model that guesses. A model has collapsed
    if its mean recall is less than COLLAPSED_BELOW of the way from there to 100. Labels without
    test samples (None) do not count. Fewer than two labels have no chance level, so the result is
    False.

    >>> has_collapsed([0.0, 0.0, 100.0, None]), has_collapsed([50.0, 0.0, 70.0])
    (True, False)
    """
    known = [value for value in recall if value is not None]
    if len(known) < 2:
        return False
    chance = 100 / len(known)
    return sum(known) / len(known) < chance + COLLAPSED_BELOW * (100 - chance)


def confusion(labels: Ints, predictions: Ints, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the test samples of each true label by predicted label, without the zeros.

    The size is bounded by the number of test samples, however many labels there are.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), ("cat", "dog", "owl"))
    {'cat': {'cat': 1, 'dog': 1}, 'dog': {'dog': 1}}
    """
    pairs, counts = np.unique(labels * len(names) + predictions, return_counts=True)
    rows: dict[str, dict[str, int]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        truth, prediction = divmod(pair, len(names))
        rows.setdefault(names[truth], {})[names[prediction]] = count
    return rows


def recall_per_label(labels: Ints, predictions: Ints, classes: int) -> list[float | None]:
    """Return the recall of each label in percent; None for a label without test samples.

    >>> recall_per_label(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    [50.0, 100.0, None]
    """
    tested = np.bincount(labels, minlength=classes).tolist()
    right = np.bincount(labels[labels == predictions], minlength=classes).tolist()
    pairs = zip(right, tested, strict=True)
    return [100 * hits / total if total else None for hits, total in pairs]


def accuracy_metrics(
    labels: Ints, predictions: Ints, classes: int, rare: Collection[int]
) -> dict[str, float | None]:
    """Compute GlobalAcc, AvgRare, MacroF1, RareF1 and RareF2 in percent; None where undefined.

    AvgRare is the mean recall of the rare labels. RareF2 is their mean F-score with beta = 2,
    which weights recall higher than precision. Labels without test samples are left out of every
    mean, because nothing is known about their recall.

    >>> labels, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 1])
    >>> metrics = accuracy_metrics(labels, predictions, 2, rare=[1])
    >>> [metrics[key] for key in ("GlobalAcc", "AvgRare")]
    [80.0, 50.0]
    """
    tested = np.bincount(labels, minlength=classes)
    predicted = np.bincount(predictions, minlength=classes)
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    present = np.flatnonzero(tested)
    tested, predicted, correct = tested[present], predicted[present], correct[present]
    is_rare = np.isin(present, list(rare))
    # With beta² = b: F = (1 + b) · correct / (b · tested + predicted), and `tested` is never 0.
    f1, f2 = ((1 + b) * correct / (b * tested + predicted) for b in (1, 4))
    return {
        "GlobalAcc": _percent(labels == predictions),
        "AvgRare": _percent((correct / tested)[is_rare]),
        "MacroF1": _percent(f1),
        "RareF1": _percent(f1[is_rare]),
        "RareF2": _percent(f2[is_rare]),
    }


def _percent(values: Floats) -> float | None:
    return 100 * float(values.mean()) if values.size else None
