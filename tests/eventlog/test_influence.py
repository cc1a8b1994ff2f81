from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventlog.logs import arrival, record

from fedraw.core.labels import LabelTable
from fedraw.eventlog.metrics import label_influence
from fedraw.eventlog.records import ArrivalRecord, InfluenceRule, Record
from fedraw.eventlog.state import RunState


def aggregation(
    buffer: list[int], weights: list[float | None], aggregated: bool = True
) -> ArrivalRecord:
    return arrival(client=0, aggregated=aggregated, buffer=buffer, weights=weights)


def joined(client: int, label: str = "cat", event: int = 0) -> Record:
    return record("joined", client=client, counts={label: 1}, event=event)


def declared(client: int, label: str) -> Record:
    return record("declared", client=client, counts={label: 1})


def left(client: int) -> Record:
    return record("left", client=client)


def run(*records: Record, rule: InfluenceRule = "slots") -> RunState:
    return RunState.of([record("start", rare_labels=["owl"], influence=rule), *records])


def rare_share(state: RunState) -> float | None:
    share: float | None = state.summary()["metrics"]["RareInfluence"]
    return share


def test_influence_is_the_mean_weight_over_aggregations() -> None:
    clients = [joined(0, "owl"), joined(1), joined(2, "owl")]
    assert rare_share(run(*clients)) is None
    state = run(
        *clients,
        aggregation([2], [], aggregated=False),
        aggregation([0, 1], [0.75, 0.25]),
        aggregation([1, 1], [0.5, 0.5]),
    )
    assert state.influence() == {0: 0.375, 1: 0.625}
    assert rare_share(state) == 37.5


@pytest.mark.parametrize("rule", ["slots", "cache"])
def test_a_label_that_moves_does_not_change_past_influence(rule: InfluenceRule) -> None:
    half = aggregation([0, 1], [0.5, 0.5])
    state = run(joined(0, "owl"), joined(1), half, half, rule=rule)
    state.apply(declared(0, "cat"))
    state.apply(declared(1, "owl"))
    assert rare_share(state) == 50, "0 had half of it while it was rare, 1 has had none since"
    state.apply(aggregation([0, 1], [0.25, 0.75]))
    own = (0.75, 0.5)[rule == "cache"]
    assert rare_share(state) == pytest.approx(100 * (0.5 * 2 + own) / 3)
    state.apply(declared(1, "cat"))
    state.apply(half)
    assert rare_share(state) == pytest.approx(100 * (0.5 * 2 + own) / 4)


def test_a_cached_client_has_weight_one_nth_from_its_first_step() -> None:
    clients = map(joined, range(4))
    state = run(*clients, aggregation([0], [1.0]), aggregation([1], [1.0]), rule="cache")
    assert state.influence() == {0: 0.25, 1: 0.125}


@pytest.mark.parametrize("rule", ["slots", "cache"])
def test_there_is_no_influence_before_the_first_aggregation(rule: InfluenceRule) -> None:
    assert run(joined(0), joined(1), rule=rule).influence() == {}


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
    members, cached, count = set(range(founders)), set[int](), 0
    weighed = defaultdict[int, Fraction](Fraction)
    state = run(*map(joined, range(founders)), rule="cache")
    for kind, clients in steps:
        if kind == "step":
            count += 1
            cached |= clients & members
            for client in cached:
                weighed[client] += Fraction(1, len(members))
            present = sorted(clients & members)
            state.apply(aggregation(present, [1.0] * len(present)))
        for client in clients:
            if kind == "join" and client not in members:
                members.add(client)
                state.apply(joined(client, event=count))
            elif kind == "leave" and client in members:
                members.discard(client)
                cached.discard(client)
                state.apply(left(client))
    expected = {client: float(total / count) for client, total in weighed.items()}
    assert state.influence() == pytest.approx(expected)
    assert set(state.members) == members
    assert state.size == len(members)


def test_the_update_of_a_departed_client_may_still_be_in_the_buffer() -> None:
    state = run(joined(0), joined(1), left(0), aggregation([0, 1], [0.5, 0.5]), rule="cache")
    assert state.influence() == {1: 1.0}
    state.apply(joined(0))
    state.apply(aggregation([0], [1.0]))
    assert state.influence() == {0: 0.25, 1: 0.75}


def test_missing_weights_count_as_zero() -> None:
    half_known = [aggregation([0, 1], []), aggregation([0, 1], [None, 0.5])]
    assert run(joined(0), joined(1), *half_known).influence() == {0: 0.0, 1: 0.25}
