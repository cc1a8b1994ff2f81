from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventlog.logs import arrival

from fedraw.core.labels import LabelTable
from fedraw.eventlog.influence import Influence, label_influence
from fedraw.eventlog.records import ArrivalRecord, InfluenceRule


def aggregation(
    buffer: list[int], weights: list[float | None], aggregated: bool = True
) -> ArrivalRecord:
    return arrival(aggregated=aggregated, buffer=buffer, weights=weights)


def test_influence_is_the_mean_weight_over_aggregations() -> None:
    influence = Influence(clients=3)
    assert influence.rare_share() is None
    for rare in (0, 2):
        influence.count_as(rare, True)
    influence.observe(aggregation([2], [], aggregated=False))
    influence.observe(aggregation([0, 1], [0.75, 0.25]))
    influence.observe(aggregation([1, 1], [0.5, 0.5]))
    assert influence.by_client() == {0: 0.375, 1: 0.625}
    assert influence.rare_share() == 37.5


@pytest.mark.parametrize("rule", ["slots", "cache"])
def test_a_label_that_moves_does_not_change_past_influence(rule: InfluenceRule) -> None:
    influence = Influence(clients=2, rule=rule)
    influence.count_as(0, True)
    half = aggregation([0, 1], [0.5, 0.5])
    influence.observe(half)
    influence.observe(half)
    influence.count_as(0, False)
    influence.count_as(1, True)
    assert influence.rare_share() == 50, "0 had half of it while it was rare, 1 has had none since"
    influence.observe(aggregation([0, 1], [0.25, 0.75]))
    assert influence.rare_share() == pytest.approx(
        100 * (0.5 * 2 + (0.75, 0.5)[rule == "cache"]) / 3
    )
    influence.count_as(1, False)
    influence.observe(half)
    assert influence.rare_share() == pytest.approx(
        100 * (0.5 * 2 + (0.75, 0.5)[rule == "cache"]) / 4
    )


def test_a_cached_client_has_weight_one_nth_from_its_first_step() -> None:
    influence = Influence(clients=4, rule="cache")
    influence.observe(aggregation([0], [1.0]))
    influence.observe(aggregation([1], [1.0]))
    assert influence.by_client() == {0: 0.25, 1: 0.125}


def test_there_is_no_influence_before_the_first_aggregation() -> None:
    assert Influence(2).by_client() == {}
    assert Influence(2, "cache").by_client() == {}


def test_label_influence_against_the_fair_share() -> None:
    table = LabelTable.from_counts({0: {"common": 30}, 1: {"common": 10, "rare": 10}})
    labels = label_influence({0: 0.9, 1: 0.1}, table)
    assert labels["rare"].influence == pytest.approx(0.05)
    assert labels["rare"].fair_share == pytest.approx(0.2)
    assert labels["rare"].ratio == pytest.approx(0.25)
    assert sum(label.influence for label in labels.values()) == pytest.approx(1)


def test_a_client_without_weight_has_no_label_influence() -> None:
    table = LabelTable.from_counts({0: {"common": 30}, 1: {"rare": 10}})
    labels = label_influence({0: 1.0}, table)
    assert (labels["common"].influence, labels["rare"].influence) == (1, 0)
    assert labels["rare"].ratio == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "step"]), st.sets(st.integers(0, 5), max_size=3))
)


@given(st.integers(0, 6), STEPS)
def test_influence_with_changing_members_equals_the_sum_over_steps(
    founders: int, steps: list[tuple[str, set[int]]]
) -> None:
    members, cached, weighed, count = (
        set(range(founders)),
        set[int](),
        defaultdict[int, Fraction](Fraction),
        0,
    )
    influence = Influence(founders, "cache")
    for kind, clients in steps:
        if kind == "step":
            count += 1
            cached |= clients & members
            for client in cached:
                weighed[client] += Fraction(1, len(members))
            present = sorted(clients & members)
            influence.observe(aggregation(present, [1.0] * len(present)))
        for client in clients:
            if kind == "join" and client not in members:
                members.add(client)
                influence.joined(client)
            elif kind == "leave" and client in members:
                members.discard(client)
                cached.discard(client)
                influence.left(client)
    expected = {client: float(total / count) for client, total in weighed.items()}
    assert influence.by_client() == pytest.approx(expected)


def test_the_update_of_a_departed_client_may_still_be_in_the_buffer() -> None:
    influence = Influence(2, "cache")
    influence.left(0)
    influence.observe(aggregation([0, 1], [0.5, 0.5]))
    assert influence.by_client() == {1: 1.0}
    influence.joined(0)
    influence.observe(aggregation([0], [1.0]))
    assert influence.by_client() == {0: 0.25, 1: 0.75}


def test_missing_weights_count_as_zero() -> None:
    influence = Influence(2)
    influence.observe(aggregation([0, 1], []))
    influence.observe(aggregation([0, 1], [None, 0.5]))
    assert influence.by_client() == {0: 0.0, 1: 0.25}
