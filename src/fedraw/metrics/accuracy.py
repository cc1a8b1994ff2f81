"""Measures how well the global model recognises the labels, the rare ones in particular.

Everything here is NumPy only; the tests compare the scores with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from fedraw.core.types import Floats, Ints

# A model has collapsed if a score of it is less than this share of the way from chance to 100 %.
# The lowest of the 1,503 evaluated runs in studies/results/cpu are 0.137 (mean recall), 0.163
# (GlobalAcc) and 0.111 (MacroF1) of the way.
COLLAPSED_BELOW = 0.05


def has_collapsed(
    recall: Iterable[float | None], metrics: Mapping[str, float | None] | None = None
) -> bool:
    """Return whether a model is no better than chance.

    Chance is 100/n for n labels with test samples. A model that ignores its input, because it
    guesses or because it always gives the same answer, has a mean recall of exactly 100/n and a
    MacroF1 of at most 100/n, however common the labels are. A model has collapsed if its mean
    recall, its MacroF1 or its GlobalAcc is less than COLLAPSED_BELOW of the way from 100/n to 100.
    The result is False for fewer than two labels, which have no chance level.

    Args:
        recall: The recall of each label in percent; None for a label without test samples.
        metrics: MacroF1 and GlobalAcc in percent, as far as they are known.

    >>> has_collapsed([0.0, 0.0, 100.0, None]), has_collapsed([50.0, 0.0, 70.0])
    (True, False)
    >>> has_collapsed([50.0, 0.0, 70.0], {"MacroF1": 34.0, "GlobalAcc": 60.0})
    True

    """
    known = [value for value in recall if value is not None]
    if len(known) < 2:
        return False
    chance = 100 / len(known)
    scores = [sum(known) / len(known), *map((metrics or {}).get, ("MacroF1", "GlobalAcc"))]
    bar = chance + COLLAPSED_BELOW * (100 - chance)
    return any(score is not None and score < bar for score in scores)


def majority_share(confusion: Mapping[str, Mapping[str, int]]) -> float | None:
    """Return the share of the commonest label in the test set, in percent; None without samples.

    It is the GlobalAcc of a model that always answers that label.

    >>> majority_share({"cat": {"cat": 2, "dog": 1}, "dog": {"dog": 1}})
    75.0
    """
    tested = [sum(row.values()) for row in confusion.values()]
    return 100 * max(tested) / sum(tested) if any(tested) else None


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
