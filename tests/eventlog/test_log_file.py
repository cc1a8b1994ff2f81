from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.eventlog.logs import as_bytes, record

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Chain, LogWriter, Position, read_log
from fedraw.eventlog.records import KINDS, Record, from_fields, to_fields

RECORDS: list[Record] = [
    record("start", origin="server", seed=None),
    record("joined", client="münster", counts={"cat": 3}),
    record("arrival", event=1, client="münster", time=0.25),
    record("end", event=1),
]


def written(path: Path) -> Path:
    with path.open("ab") as file:
        log = LogWriter(file)
        for record in RECORDS:
            log.write(record)
        assert log.to_disk()[:2] == (path.stat().st_size, len(RECORDS))
    return path


def test_a_written_log_is_read_back(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    assert list(read_log(path)) == RECORDS
    assert path.read_bytes().count(b"\n") == len(RECORDS)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("arrival", "copy", True),
        ("rejected", "copy", True),
        ("evaluation", "serving", {"metrics": {"AvgRare": 50.0}}),
    ],
)
def test_a_field_that_only_the_previous_release_wrote_is_left_out(
    kind: str, field: str, value: object
) -> None:
    own = record(kind)
    assert from_fields({**to_fields(own), field: value}) == own


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"kind":"arr', "line 5 is not a record of an event log; was the run cut off"),
        (b"[]\n", "line 5 is not a record"),
        (b'{"event":1}\n', "line 5 is not a record"),
        (b"[" * 100_000 + b"\n", "line 5 is not a record"),
        (b'{"kind":"start","format":9}\n', "has format 9, and this fedraw reads format 3"),
        (b"\xff\n", "line 5 is not a record"),
        (b'{"kind":"arival","event":1}\n', "line 5 was altered"),
        (b'{"kind":"end","event":1}\n', "line 5 was altered"),
    ],
)
def test_a_line_that_is_not_a_record_is_named(line: bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(BadInput, match=message):
        list(read_log(path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "arival"}, "its kind 'arival' is unknown; did you mean 'arrival'"),
        ({"kind": "end", "event": 1}, "its kind is 'end', but it lacks time"),
        ({"kind": "end", "event": 1, "time": "now"}, "its time = 'now' has the wrong type"),
        ({"kind": "end", "event": True, "time": 1.0}, "its event = True has the wrong type"),
        ({"kind": "end", "event": 1, "time": 1, "why": ""}, "its field 'why' is unknown"),
        (
            {**to_fields(RECORDS[2]), "buffer": [["a"]]},
            "its buffer = .* holds a value of the wrong type",
        ),
        (
            {**to_fields(RECORDS[2]), "weights": ["1.0"]},
            "its weights = .* holds a value of the wrong type",
        ),
        (
            {**to_fields(RECORDS[1]), "counts": {"cat": "3"}},
            "its counts = .* holds a value of the wrong type",
        ),
        (
            {**to_fields(record("evaluation")), "confusion": {"cat": {"cat": None}}},
            "its confusion = .* holds a value of the wrong type",
        ),
        (
            {**to_fields(record("evaluation")), "inferred": {"holders": {"cat": 3}}},
            "its inferred coverage is missing or has the wrong type",
        ),
        ({**to_fields(RECORDS[0]), "spec": {"run": 3}}, "its spec.run = 3 is not a table"),
        (
            {**to_fields(RECORDS[0]), "origin": "dream"},
            "origin = 'dream' is not one of simulation, server",
        ),
    ],
)
def test_a_record_that_does_not_fit_its_kind_is_named(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(as_bytes([*RECORDS, fields]))
    with pytest.raises(
        BadInput, match=f"line 5 is not valid in an event log: {message}.*; restore"
    ):
        list(read_log(path))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_survives_a_round_trip(kind: str) -> None:
    fields = to_fields(record(kind))
    assert next(iter(fields)) == "kind"
    assert from_fields(dict(fields)) == record(kind)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.text(),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_a_line_is_the_json_of_its_fields(value: object) -> None:
    fields = {"kind": "note", "value": value}
    content, _, _ = Chain().encode_fields(fields).rpartition(b',"digest":"')
    assert content + b"}" == json.dumps(fields, separators=(",", ":")).encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("no JSON")])
def test_values_that_json_cannot_represent_are_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError), match="not JSON"):
        Chain().encode_fields({"kind": "note", "value": [value]})


def test_an_incomplete_last_line_is_skipped_on_request(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"arri')
    assert list(read_log(path, allow_cut_off=True)) == RECORDS
    for end in (b"\0" * 40, b'{"kind":"ar' + b"\0" * 9, b"oops"):
        path.write_bytes(whole + end)
        with pytest.raises(BadInput, match="line 5 is not a record of an event log"):
            list(read_log(path, allow_cut_off=True))


def test_a_missing_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*nowhere\.jsonl: No such .*; restore"):
        list(read_log(tmp_path / "nowhere.jsonl"))


def test_a_truncated_log_can_be_continued(tmp_path: Path) -> None:
    whole, parts = written(tmp_path / "whole.jsonl"), tmp_path / "parts.jsonl"
    with parts.open("ab") as file:
        log = LogWriter(file)
        for record in RECORDS[:2]:
            log.write(record)
        position = log.to_disk()
    with parts.open("ab") as file:
        log = LogWriter(file, position)
        for record in RECORDS[2:]:
            log.write(record)
    assert parts.read_bytes() == whole.read_bytes()
    assert list(read_log(parts, since=position)) == RECORDS[2:]
    assert list(read_log(parts, until=position)) == RECORDS[:2]


def test_a_log_that_differs_before_a_position_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    with path.open("ab") as file:
        position = LogWriter(file, Position(path.stat().st_size, 4, "0" * 16)).to_disk()
    with pytest.raises(BadInput, match=r"events\.jsonl is not the log that was written"):
        list(read_log(path, until=position))
    longer = Position(position.length + 1, 5, "0" * 16)
    with pytest.raises(BadInput, match="its first 5 lines are missing or different"):
        list(read_log(path, until=longer))


LINES = st.integers(0, len(RECORDS) - 1)


@given(one=LINES, other=LINES, data=st.data())
def test_every_change_but_a_truncation_is_found(
    one: int, other: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.mktemp("log") / "events.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    change = data.draw(st.sampled_from(["flip", "drop", "repeat", "swap"]))
    if change == "flip":
        place = data.draw(st.integers(0, len(lines[one]) - 1))
        flipped = bytearray(lines[one])
        flipped[place] ^= 1 << data.draw(st.integers(0, 7))
        lines[one] = bytes(flipped)
    elif change == "drop":
        del lines[one]
        assume(one < len(lines))
    elif change == "repeat":
        lines.insert(other, lines[one])
    else:
        assume(one != other)
        lines[one], lines[other] = lines[other], lines[one]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadInput, match=r"events\.jsonl"):
        list(read_log(path))


def test_a_number_that_is_not_finite_is_never_written(tmp_path: Path) -> None:
    with (tmp_path / "events.jsonl").open("ab") as file, pytest.raises(ValueError, match="float"):
        LogWriter(file).write(record("arrival", norm=float("inf")))
