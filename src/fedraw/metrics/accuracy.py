"""How well the global model knows the labels, above all the rare ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import ModuleType

import numpy as np

from fedraw.core.types import Floats, Ints
from fedraw.errors import MissingExtra

# A model that is less than this share of the way from chance to perfect recall has collapsed.
# The lowest of the 1,503 evaluated runs in studies/results/cpu is 0.137 of the way.
COLLAPSED_BELOW = 0.05


def has_collapsed(recall: Iterable[float | None]) -> bool:
    """Whether a model is no better than chance, given the recall of each label in percent.

    The mean recall over the n labels of the test set is 100/n for a model that always answers the
    same label, however common that label is, and for one that guesses. A model has collapsed if
    its mean recall is less than COLLAPSED_BELOW of the way from there to 100. Labels without test
    images (None) do not count. With fewer than two labels there is no chance level, and the answer
    is False.

    >>> has_collapsed([0.0, 0.0, 100.0, None]), has_collapsed([50.0, 0.0, 70.0])
    (True, False)
    """
    known = [value for value in recall if value is not None]
    if len(known) < 2:
        return False
    chance = 100 / len(known)
    return sum(known) / len(known) < chance + COLLAPSED_BELOW * (100 - chance)


def confusion(labels: Ints, predictions: Ints, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """How many test samples of each true label were given each label, without the zeros.

    Its size is bounded by the number of test samples, however many labels there are.

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
    """Share of each label's test images that were recognised, in percent; None if it has none.

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
    """GlobalAcc, AvgRare, MacroF1, RareF1 and RareF2, in percent; None where undefined.

    AvgRare is the mean recall of the rare labels, RareF2 their mean F-score with recall counted
    twice as important. Labels that the test set lacks take no part in any mean: nothing is known
    of their recall, and a 0 would pretend otherwise.

    >>> labels, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 1])
    >>> metrics = accuracy_metrics(labels, predictions, 2, rare=[1])
    >>> [metrics[key] for key in ("GlobalAcc", "AvgRare")]
    [80.0, 50.0]
    """
    present = np.unique(labels)
    scarce = np.isin(present, list(rare))
    _, recall, f1 = _scores(labels, predictions, present, beta=1)
    _, _, f2 = _scores(labels, predictions, present, beta=2)
    return {
        "GlobalAcc": _percent(labels == predictions),
        "AvgRare": _percent(recall[scarce]),
        "MacroF1": _percent(f1),
        "RareF1": _percent(f1[scarce]),
        "RareF2": _percent(f2[scarce]),
    }


def _scores(
    labels: Ints, predictions: Ints, present: Ints, beta: float
) -> tuple[Floats, Floats, Floats]:
    if not len(present):
        return np.empty(0), np.empty(0), np.empty(0)
    precision, recall, score, _ = _scikit().precision_recall_fscore_support(
        labels, predictions, labels=present, beta=beta, zero_division=0
    )
    return precision, recall, score


def _percent(values: Floats) -> float | None:
    return 100 * float(values.mean()) if values.size else None


def _scikit() -> ModuleType:
    try:
        import sklearn.metrics
    except ImportError as error:
        raise MissingExtra("scikit-learn", "sim") from error
    module: ModuleType = sklearn.metrics
    return module
