"""One state of a run: in one go, while it is followed, and from old logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventlog.federation_log import END, OVERDUE, START, STORY, member, write
from tests.eventlog.logs import as_bytes, record
from tests.report import hand_made

from fedraw.eventlog import live
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import NoteRecord, Record, arrival_record, from_fields, to_fields
from fedraw.eventlog.state import RunState

SIMULATED = hand_made.records("fedraw", 1, [(60.0, float(n)) for n in range(20, 80, 5)])
LOGS: dict[str, Sequence[Record]] = {
    "a server": [*STORY, END],
    "a server with a cache": [replace(START, influence="cache"), *STORY[1:]],
    "a simulation": SIMULATED,
    "a simulation that is interrupted": SIMULATED[:-3],
}


def content(value: Any) -> Any:
    """Everything that an object holds, so that two of them can be compared."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: content(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "__dict__"):
        return {name: content(own) for name, own in vars(value).items()}
    if isinstance(value, dict):
        return {key: content(own) for key, own in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(map(content, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", LOGS)
@given(data=st.data())
def test_a_log_that_is_followed_gives_the_state_of_all_its_records(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records = LOGS[name]
    whole = as_bytes(records)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole)), max_size=4)))
    log = tmp_path_factory.mktemp("run") / "events.jsonl"
    log.touch()
    follower = LogFollower(log)
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with log.open("ab") as file:
            file.write(whole[start:end])
        follower.poll()
        follower.detail()  # a question changes nothing
        follower.state.summary()
    once = RunState.of(read_log(log), bounded=True)
    assert live.detail(follower.state) == live.detail(once)
    assert follower.state.summary() == once.summary() == RunState.of(records).summary()
    assert content(follower.state) == content(once)


def test_founders_that_are_added_together_give_the_same_summary() -> None:
    start, *others = SIMULATED
    joined = [own for own in others if own.kind == "joined"]
    later = [own for own in others if own.kind != "joined"]
    table = RunState.of([start, *joined]).table
    assert table is not None
    together = RunState.of([start])
    together.add_founders(table)
    for known in later:
        together.apply(known)
    assert json.dumps(together.summary()) == json.dumps(RunState.of(SIMULATED).summary())


@pytest.mark.parametrize(
    ("reason", "about", "until"),
    [
        (OVERDUE, "back-off", 55.0),
        ("asked again later: it has no room", "back-off", None),
        ("rolled back to version 3 by the operator", "roll-back", None),
        ("back as node 4; asked again for what it was training", None, None),
    ],
)
def test_the_topic_of_an_old_note_is_read_from_its_words(
    reason: str, about: str | None, until: float | None
) -> None:
    old = {"kind": "note", "event": 2, "time": 25.0, "client": "east", "reason": reason}
    found = from_fields(dict(old))
    assert isinstance(found, NoteRecord)
    assert (found.reason, found.about, found.until) == (reason, about, until)
    assert from_fields(to_fields(found)) == found


def test_a_back_off_without_an_end_lasts_as_long_as_the_server_is_set_to(tmp_path: Path) -> None:
    start = replace(START, spec={"server": {"back_off": 40.0}})
    note = member("note", 2, 25.0, "east", reason="asked again later: it has no room")
    log = write(tmp_path / "events.jsonl", [start, *STORY[1:3], note])
    east = live.sites(RunState.read(log), 64.0)[1]
    assert (east.state, east.until) == ("back-off", 65.0)
    assert live.sites(RunState.read(log), 66.0)[1].state == "training"


def test_a_new_note_tells_its_topic_and_no_word_of_it_is_read() -> None:
    note = record("note", client="a", time=1.0, reason="por favor", about="back-off", until=9.0)
    state = RunState.of([record("start"), record("joined", client="a"), note])
    assert live.sites(state, 5.0)[0][1] == "back-off"
    assert live.sites(state, 5.0)[0].reason == "por favor"


def test_an_arrival_is_recorded_by_what_the_client_was_handed() -> None:
    """A user's own strategy may have weights of NumPy, and some that JSON cannot represent."""
    weights: Any = np.array([float("nan"), 0.5])
    handed_out = (4, 2.5, 1)
    made = arrival_record(
        7, 9.0, "a", handed_out=handed_out, versions=(3, 4), contents=(["a", "b"], weights)
    )
    assert (made.staleness_events, made.staleness_versions, made.aggregated) == (3, 2, True)
    assert (made.start_time, made.start_version, made.version) == (2.5, 1, 4)
    assert made.weights == [None, 0.5]
    still = arrival_record(
        7, 9.0, "a", handed_out=handed_out, versions=(3, 3), contents=(["a", "b"], weights)
    )
    assert (still.aggregated, still.weights) == (False, [])


@pytest.mark.parametrize(
    ("evaluations", "has_marks"),
    [([(60.0, 90.0)] * 5, True), ([(60.0, 90.0)] * 4, False), ([(60.0, None)] * 5, False)],
)
def test_marks_need_five_evaluations_of_rare_labels(
    evaluations: list[tuple[float, float | None]], has_marks: bool
) -> None:
    state = RunState.of(hand_made.records("fedraw", 1, evaluations))
    assert bool(state.reached) == has_marks
