from __future__ import annotations

from typing import Any

import pytest

from fedraw.core.labels import LabelTable
from fedraw.metrics.influence import Influence, group_influence, label_influence


def aggregation(buffer: list[int], weights: list[float]) -> dict[str, Any]:
    return {"aggregated": True, "buffer": buffer, "weights": weights}


def test_influence_is_the_mean_weight_over_aggregations() -> None:
    influence = Influence(clients=3)
    influence.observe({"aggregated": False, "buffer": [2], "weights": []})
    influence.observe(aggregation([0, 1], [0.75, 0.25]))
    influence.observe(aggregation([1, 1], [0.5, 0.5]))
    assert influence.by_client() == {0: 0.375, 1: 0.625}
    assert group_influence(influence.by_client(), [0, 2]) == 37.5


def test_a_cached_client_weighs_one_nth_from_its_first_step_on() -> None:
    influence = Influence(clients=4, rule="cache")
    influence.observe(aggregation([0], [1.0]))
    influence.observe(aggregation([1], [1.0]))
    assert influence.by_client() == {0: 0.25, 1: 0.125}


def test_nothing_has_influence_before_the_first_aggregation() -> None:
    assert Influence(2).by_client() == {}
    assert Influence(2, "cache").by_client() == {}


def test_label_influence_against_the_fair_share() -> None:
    table = LabelTable.from_counts({0: {"common": 30}, 1: {"common": 10, "rare": 10}})
    labels = label_influence({0: 0.9, 1: 0.1}, table)
    assert labels["rare"].influence == pytest.approx(0.05)
    assert labels["rare"].fair_share == pytest.approx(0.2)
    assert labels["rare"].ratio == pytest.approx(0.25)
    assert sum(label.influence for label in labels.values()) == pytest.approx(1)
