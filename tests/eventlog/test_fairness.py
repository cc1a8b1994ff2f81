from __future__ import annotations

import numpy as np
import pytest

from fedraw.eventlog.metrics import client_accuracies, fairness_metrics


def test_a_client_without_local_tests_has_no_accuracy() -> None:
    correct = np.array([True, True, False, False])
    accuracies = client_accuracies(correct, np.array([3, 3, 3, 1]), clients=5)
    assert accuracies == [None, 0.0, None, pytest.approx(200 / 3), None]


def test_no_local_tests_at_all() -> None:
    nothing = client_accuracies(np.array([], dtype=bool), np.array([], dtype=np.int64), clients=2)
    assert nothing == [None, None]
    assert set(fairness_metrics(nothing, {0}).values()) == {None}


def test_fairness_by_hand() -> None:
    # (80 + 40 + 60)² / (3 · (6400 + 1600 + 3600)) = 32400 / 34800
    assert fairness_metrics([80.0, 40.0, 60.0], rare={1}) == pytest.approx(
        {
            "Worst10": 40,
            "LocalRare": 40,
            "LocalCommon": 70,
            "MeanClient": 60,
            "Jain": 32400 / 34800,
        }
    )


@pytest.mark.parametrize(("clients", "worst"), [(1, 0), (10, 0), (11, 0.5), (30, 1), (31, 1.5)])
def test_the_worst_tenth_is_rounded_up(clients: int, worst: float) -> None:
    ascending = [float(value) for value in range(clients)]
    assert fairness_metrics(ascending[::-1], rare=[])["Worst10"] == worst


def test_unmeasured_clients_take_no_part() -> None:
    metrics = fairness_metrics([None, 50.0, None, 100.0], rare={0, 1})
    assert (metrics["LocalRare"], metrics["LocalCommon"]) == (50, 100)
    assert (metrics["MeanClient"], metrics["Worst10"]) == (75, 50)


def test_if_all_accuracies_are_zero_only_jain_is_undefined() -> None:
    metrics = fairness_metrics([0.0, 0.0], rare={0})
    assert metrics["Jain"] is None
    assert [metrics[k] for k in ("Worst10", "LocalRare", "MeanClient")] == [0, 0, 0]


def test_empty_groups_are_undefined() -> None:
    assert fairness_metrics([70.0], rare=[])["LocalRare"] is None
    assert fairness_metrics([70.0], rare=[0])["LocalCommon"] is None


def test_a_single_client_is_fair_to_itself() -> None:
    assert fairness_metrics([70.0], rare=[0]) == {
        "Worst10": 70,
        "LocalRare": 70,
        "LocalCommon": None,
        "MeanClient": 70,
        "Jain": 1,
    }
