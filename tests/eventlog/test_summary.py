"""The summary of a log in which sites join, leave and declare new labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.eventlog.federation_log import END, START, STORY, arrival, member
from tests.eventlog.logs import record

from fedraw.eventlog.records import Record
from fedraw.eventlog.state import RunState


def test_a_client_is_rare_by_its_labels_at_the_arrival() -> None:
    dynamics = RunState.of(STORY).participation()
    # Four arrivals, all aggregated; "north" is rare only at the second.
    assert dynamics["BufPres"] == 25
    assert dynamics["RarePart"] == 25
    assert dynamics["RareMeanStale"] == dynamics["RareMaxStale"] == 1
    assert dynamics["RareHoldsMax"] == 25
    assert dynamics["Aggregations"] == 4


def test_members_are_current_and_clients_include_departed_ones() -> None:
    summary = RunState.of(STORY)
    assert summary.members == ["east", "north"]
    assert list(summary.counts) == ["west", "east", "north"]
    assert summary.rare_clients == []


def test_a_departed_client_counts_for_its_updates() -> None:
    content = RunState.of(STORY).summary()
    assert content["influence"] == {"west": 0.4375, "east": 0.125, "north": 0.4375}
    assert content["rejected"] == {"west": 1}
    assert content["events"] == 5
    assert content["seed"] is None
    assert content["label_influence"] == {
        "cat": {"influence": 1.0, "fair_share": 1.0, "ratio": 1.0}
    }


def test_a_departed_rare_client_still_counts_as_rare_in_the_buffer() -> None:
    records = [
        START,
        member("joined", 0, 0.0, "west", counts={"cat": 1}),
        member("joined", 0, 0.0, "north", counts={"owl": 1}),
        arrival(1, 1.0, "north", ["north"], []),
        member("left", 1, 2.0, "north", reason="out of reach"),
        arrival(2, 3.0, "west", ["north", "west"], [0.5, 0.5]),
    ]
    summary = RunState.of(records)
    assert summary.participation()["BufPres"] == 100
    assert summary.rare_clients == ["north"]
    assert summary.summary()["metrics"]["RareInfluence"] == 50


def test_changes_are_counted_by_site() -> None:
    assert RunState.of([*STORY, END]).summary()["changes"] == {
        "joined": {"north": 1},
        "left": {"east": 1, "west": 1},
        "returned": {"east": 1},
        "declared": {"north": 1},
        "restarts": 1,
        "down": 75.0,
    }


def test_the_log_of_a_simulation_has_no_changes() -> None:
    claim = record("declared", client="east", reason="claims owls")
    records = [replace(START, attacker="east"), *STORY[1:3], claim, STORY[3]]
    summary = RunState.of(records)
    assert "changes" not in summary.summary()
    assert summary.rare_clients == []


def test_a_cached_update_has_weight_one_nth_of_the_current_members() -> None:
    records: list[Record] = [
        replace(START, influence="cache"),
        member("joined", 0, 0.0, "a", counts={"cat": 1}),
        member("joined", 0, 0.0, "b", counts={"cat": 1}),
        arrival(1, 1.0, "a", ["a"], [1.0]),
        member("joined", 1, 2.0, "c", counts={"cat": 1}),
        arrival(2, 3.0, "b", ["b"], [1.0]),
        member("left", 2, 4.0, "a", reason="out of reach"),
        arrival(3, 5.0, "c", ["a", "c"], [0.5, 0.5]),
    ]
    influence = RunState.of(records).summary()["influence"]
    assert influence["a"] == pytest.approx((1 / 2 + 1 / 3) / 3)
    assert influence["b"] == pytest.approx((1 / 3 + 1 / 2) / 3)
    assert influence["c"] == pytest.approx(1 / 2 / 3)


def test_a_site_that_joins_twice_is_one_member() -> None:
    again = [member("joined", 1, 2.0, "west", counts={"cat": 1})]
    assert len(RunState.of([*STORY[:4], *again]).members) == 2
    gone = [member("left", 1, 3.0, "west", reason="")] * 2
    assert RunState.of([*STORY[:4], *gone]).members == ["east"]


def test_a_cleared_client_is_no_longer_doubted() -> None:
    doubted = record("doubted", event=3, client="a", label="owl")
    other = record("doubted", event=4, client="a", label="cat")
    cleared = record("cleared", event=9, client="a", label="owl", presence=1.0)
    assert RunState.of([doubted, other, doubted]).doubted == {"a": ["cat", "owl"]}
    assert RunState.of([doubted, other, cleared]).doubted == {"a": ["cat"]}
    assert RunState.of([*STORY, doubted]).summary()["doubted"] == {"a": ["owl"]}
    assert "doubted" not in RunState.of([*STORY, doubted, cleared]).summary()
    assert RunState.of([cleared]).doubted == {}
