"""The labels at risk with reasons, and the state of every site, from short logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.eventlog.federation_log import STORY
from tests.eventlog.logs import arrival, record
from tests.server.engine import Engine, failing

from fedraw.eventlog import live
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.live import LabelRisk, RunDetail
from fedraw.eventlog.records import Record, StartRecord
from fedraw.eventlog.state import RunState


def of(records: list[Record]) -> RunState:
    return RunState.of(records, bounded=True)


def detail(records: list[Record]) -> RunDetail:
    return live.detail(of(records))


def states(state: RunState, now: float | None = None) -> dict[str, str]:
    found = live.sites(state, state.time if now is None else now)
    return {str(site.client): site.state for site in found}


def test_the_states_of_sites() -> None:
    state = of(STORY)
    west, _east, north = live.sites(state, state.time)
    assert states(state) == {"west": "quarantined", "east": "training", "north": "training"}
    assert (west.arrivals, west.rejected, west.heard, west.silent) == (1, 1, 130.0, 21.0)
    assert west.until == 1_700_003_600.0
    assert west.reason.startswith("quarantined for 3600 s")
    assert (north.arrivals, north.staleness, north.last_staleness) == (2, 1.5, 2)
    assert live.site_counts(state, 1_700_003_601.0)["away"] == 1
    assert states(of(STORY[:8])) == {"west": "training", "east": "back-off", "north": "training"}
    assert states(of(STORY[:8]), now=56.0)["east"] == "training"  # 30 s after time 25
    assert states(of(STORY[:9]))["east"] == "away"


def test_a_site_waits_for_the_end_of_its_round() -> None:
    opening = [record("start"), record("joined", client="a"), record("joined", client="b")]
    first = arrival(event=1, client="a")
    assert states(of([*opening, first])) == {"a": "waiting", "b": "training"}
    closed = arrival(event=2, client="b", aggregated=True, buffer=["a", "b"], weights=[0.5, 0.5])
    assert states(of([*opening, first, closed])) == {"a": "training", "b": "training"}


def test_the_last_holder_of_a_label_is_named() -> None:
    assert detail(STORY[:7]).at_risk == ()
    (risk,) = detail(STORY).at_risk
    assert risk == LabelRisk("owl", True, ("last holder gone",), 0, "north", None, 60.0, None)
    back = record("joined", event=5, time=160.0, client="north", counts={"owl": 1})
    assert detail([*STORY, back]).at_risk == ()


def evaluated(event: int, cat: float, owl: float) -> Record:
    return record("evaluation", event=event, metrics={}, recall={"cat": cat, "owl": owl})


def test_recall_and_standing_are_reasons_for_a_risk() -> None:
    start = StartRecord(
        origin="simulation", name="fedraw", seed=1, events=None, labels=["cat", "owl"],
        rare_labels=["owl"], spec={},
    )  # fmt: skip
    members = [
        record("joined", client="a", counts={"cat": 99}),
        record("joined", client="b", counts={"cat": 98, "owl": 1}),
    ]
    alone = [arrival(event=n, client="a", aggregated=True, buffer=["a"], weights=[1.0])
             for n in range(1, 7)]  # fmt: skip
    falling = [evaluated(6, 90.0, 80.0), evaluated(6, 90.0, 20.0)]
    found = detail([start, *members, *alone, *falling])
    (risk,) = found.at_risk
    assert risk.reasons == ("low standing", "falling recall", "low recall")
    assert (risk.standing, risk.recall, risk.change, risk.holders) == (0.0, 20.0, -60.0, 1)
    assert found.standing["cat"] == pytest.approx(2**0.5)  # sqrt(1 · 1 / median(0.995, 0.005))


def test_a_strategy_without_weights_puts_no_label_at_risk() -> None:
    start = StartRecord(
        origin="simulation", name="median", seed=1, events=None, labels=["cat", "owl"],
        rare_labels=["owl"], spec={},
    )  # fmt: skip
    members = [record("joined", client="a", counts={"cat": 99, "owl": 1})]
    told = [arrival(event=n, client="a", aggregated=True, buffer=["a"], weights=[])
            for n in range(1, 7)]  # fmt: skip
    found = detail([start, *members, *told])
    assert (found.at_risk, found.standing) == ((), {})


def test_labels_without_holders_come_first_then_the_lowest_recall() -> None:
    start = StartRecord(
        origin="simulation", name="fedraw", seed=1, events=None, labels=["cat", "emu", "owl"],
        rare_labels=["cat", "emu", "owl"], spec={},
    )  # fmt: skip
    members = [
        record("joined", client="a", counts={"cat": 9, "emu": 9}),
        record("joined", client="b", counts={"owl": 1}),
    ]
    tested = [
        record("evaluation", event=1, recall={"cat": 32.0, "emu": 30.0, "owl": recall, "yak": 99.0})
        for recall in (90.0, 45.0)
    ]
    state = of([start, *members, *tested])
    assert [risk.label for risk in live.detail(state).at_risk] == ["emu", "cat", "owl"]
    state.apply(record("left", event=2, time=1.0, client="b"))
    assert [risk.label for risk in live.detail(state).at_risk] == ["owl", "emu", "cat"]


def test_back_off_and_quarantine_of_a_real_server(tmp_path: Path) -> None:
    """The server tells the end of a pause in a field of the note."""
    engine = Engine(tmp_path, absence=10.0, patience=3, back_off=30.0, quarantine=500.0)
    engine.accept(4)
    engine.sites["west"].reply = failing
    follower = LogFollower(tmp_path / "events.jsonl")

    def state() -> str:
        follower.poll()
        return states(follower.state)["west"]

    engine.run(lambda: state() == "back-off")
    engine.unreachable.add("south")
    engine.run(lambda: states(follower.state)["south"] == "back-off" or not state())
    engine.run(lambda: state() == "quarantined")
    (risk,) = follower.detail().at_risk
    assert (risk.label, risk.reasons[0], risk.last_holder) == ("owl", "last holder gone", "west")
    paused = [own for own in engine.log("note") if own.get("about") == "back-off"]
    assert all(own["until"] > own["time"] for own in paused)
    assert {own["client"] for own in paused} == {"west", "south"}
    engine.coordinator.abandon()
