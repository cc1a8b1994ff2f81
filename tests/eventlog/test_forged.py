"""A forged log with correct digests is read or refused, without a traceback."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.eventlog import federation_log
from tests.eventlog.logs import as_bytes, record
from tests.report.hand_made import records

from fedraw.errors import BadInput
from fedraw.eventlog.compare import compare
from fedraw.eventlog.follow import RunsFollower
from fedraw.eventlog.records import to_fields
from fedraw.report.page_text import cautions_of, changes_of, facts_of, inferred_of, lead_of
from fedraw.report.report_data import read_report_data
from fedraw.report.tables import text_table
from fedraw.report.watch import Frame

INFERRED = record(
    "evaluation", event=5, inferred={"coverage": {"owl": 1.5}, "holders": {"owl": ["west"]}}
)
LOGS = [
    [to_fields(own) for own in records("fedraw", 7, data="a" * 64)],
    [to_fields(own) for own in [*federation_log.STORY, INFERRED, federation_log.END]],
]
ODD: list[Any] = [None, True, -1, 3, 2.5, "x", [], ["x"], [None], {}, {"x": "y"}, [[]]]
VALUES = st.sampled_from(ODD)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values that can be replaced."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, own in inside:
        found.append((*path, key))
        if isinstance(own, dict | list):
            found += places(own, (*path, key))
    return found


def forged(log: list[dict[str, Any]], place: tuple[Any, ...], value: Any) -> bytes:
    changed = deepcopy(log)
    target: Any = changed
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    return as_bytes(changed)


def read_everything(folder: Path) -> None:
    """Read a log as compare, watch and report do."""
    watched = RunsFollower(folder)
    watched.poll()
    statuses = watched.statuses(1e9)
    json.dumps(watched.as_json(1e9))
    Frame(statuses, statuses[0], watched.latest.detail()).lines()
    data = read_report_data([folder])
    for words in (cautions_of(data), changes_of(data), inferred_of(data)):
        assert all(isinstance(word, str) for word in words)
    assert isinstance(facts_of(data.groups) + lead_of(data.groups), str)
    Console(quiet=True).print(text_table(compare([folder])))


PLACES = [[place for place in places(log) if len(place) > 1] for log in LOGS]


@settings(max_examples=150)
@given(which=st.integers(0, 1), data=st.data())
def test_a_wrong_value_is_read_or_refused(
    which: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = data.draw(st.sampled_from(PLACES[which]))
    folder = tmp_path_factory.mktemp("forged")
    (folder / "events.jsonl").write_bytes(forged(LOGS[which], place, data.draw(VALUES)))
    with suppress(BadInput):
        read_everything(folder)
