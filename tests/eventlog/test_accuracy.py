from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support

from fedraw.core.types import Floats
from fedraw.eventlog.metrics import accuracy_metrics, confusion, has_collapsed, recall_per_label

# Label 0: 3 of 4 right, the other taken for 1. Label 1: 1 of 2 right, the other taken for 0.
LABELS = np.array([0, 0, 0, 0, 1, 1])
PREDICTIONS = np.array([0, 0, 0, 1, 1, 0])
NONE = np.array([], dtype=np.int64)


def test_confusion_has_truth_outside_and_leaves_out_what_never_happened() -> None:
    names = ("cat", "dog", "owl")
    mistakes = confusion(LABELS, PREDICTIONS, names)
    assert mistakes == {"cat": {"cat": 3, "dog": 1}, "dog": {"cat": 1, "dog": 1}}
    assert confusion(NONE, NONE, names) == {}


def test_memory_does_not_grow_with_the_square_of_the_labels() -> None:
    # A dense matrix of 5,000 labels takes 200 MB.
    classes = 5_000
    labels = np.arange(classes).repeat(2)
    predictions = (labels * 7) % classes
    tracemalloc.start()
    recall_per_label(labels, predictions, classes)
    accuracy_metrics(labels, predictions, classes, rare=[3])
    mistakes = confusion(labels, predictions, [str(label) for label in range(classes)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert mistakes["3"] == {"21": 2}


def test_recall_is_unknown_where_the_test_set_lacks_a_label() -> None:
    assert recall_per_label(LABELS, PREDICTIONS, 3) == [75.0, 50.0, None]
    assert recall_per_label(NONE, NONE, 2) == [None, None]


def test_accuracies_by_hand() -> None:
    # Label 1: precision 1/2, recall 1/2, so F1 = F2 = 1/2. Label 0: both 3/4.
    metrics = accuracy_metrics(LABELS, PREDICTIONS, 2, rare=[1])
    assert metrics == pytest.approx(
        {"GlobalAcc": 400 / 6, "AvgRare": 50, "MacroF1": 62.5, "RareF1": 50, "RareF2": 50}
    )


def test_f2_leans_towards_recall() -> None:
    # Label 0: precision 2/5, recall 1. F1 = 2·0.4/1.4 = 4/7, F2 = 5·0.4/(4·0.4+1) = 10/13.
    labels = np.array([0, 0, 1, 1, 1, 1])
    metrics = accuracy_metrics(labels, np.array([0, 0, 0, 0, 0, 1]), 2, rare=[0])
    assert metrics["RareF1"] == pytest.approx(400 / 7)
    assert metrics["RareF2"] == pytest.approx(1000 / 13)
    assert metrics["AvgRare"] == pytest.approx(100)


def test_rare_labels_are_averaged_by_label_not_by_image() -> None:
    labels = np.array([0, 1, 1, 1])
    metrics = accuracy_metrics(labels, np.array([0, 0, 0, 0]), 2, rare={0, 1})
    assert (metrics["AvgRare"], metrics["GlobalAcc"]) == (50, 25)


def test_a_label_that_is_never_predicted_scores_zero() -> None:
    metrics = accuracy_metrics(np.array([0, 1]), np.array([0, 0]), 2, rare=[1])
    assert (metrics["AvgRare"], metrics["RareF1"], metrics["RareF2"]) == (0, 0, 0)


def test_a_label_that_the_test_set_lacks_takes_no_part() -> None:
    # The prediction of label 2 costs label 1 its recall, and that is all it does.
    labels, predictions = np.array([0, 1]), np.array([0, 2])
    metrics = accuracy_metrics(labels, predictions, 4, rare=[0, 2, 3])
    assert (metrics["AvgRare"], metrics["RareF1"], metrics["MacroF1"]) == (100, 100, 50)


@pytest.mark.parametrize("rare", [[], [2]])
def test_without_a_measured_rare_label_rare_metrics_are_undefined(rare: list[int]) -> None:
    metrics = accuracy_metrics(LABELS, PREDICTIONS, 3, rare)
    assert [metrics[k] for k in ("AvgRare", "RareF1", "RareF2")] == [None, None, None]
    assert metrics["MacroF1"] == pytest.approx(62.5)


def test_without_a_test_set_everything_is_undefined() -> None:
    assert set(accuracy_metrics(NONE, NONE, 2, [0]).values()) == {None}


@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_the_scores_are_those_of_scikit_learn_bit_for_bit(
    classes: int, samples: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(classes, size=(2, samples))
    present = np.unique(labels)
    rare = [label for label in range(classes) if label % 2]
    is_rare = np.isin(present, rare)

    def scikit(beta: float) -> tuple[Floats, Floats]:
        _, recall, score, _ = precision_recall_fscore_support(
            labels, predictions, labels=present, beta=beta, zero_division=0
        )
        return recall, score

    (recall, f1), (_, f2) = scikit(1), scikit(2)
    metrics = accuracy_metrics(labels, predictions, classes, rare)
    assert metrics["MacroF1"] == 100 * f1.mean()
    if is_rare.any():
        assert metrics["AvgRare"] == 100 * recall[is_rare].mean()
        assert metrics["RareF1"] == 100 * f1[is_rare].mean()
        assert metrics["RareF2"] == 100 * f2[is_rare].mean()


def test_a_model_has_collapsed_below_a_twentieth_of_the_way_from_chance_to_all() -> None:
    # Of two labels, chance is 50 and the bar 52.5.
    assert has_collapsed([52.4, 52.4])
    assert not has_collapsed([52.6, 52.6])
    assert not has_collapsed([52.5, 52.5])
