from __future__ import annotations

from pathlib import Path

import pytest

from fedraw.disk.event_log import FORMAT, EventLog, Record, read_log
from fedraw.errors import BadInput

RECORDS: list[Record] = [
    {"kind": "start", "format": FORMAT, "seed": None},
    {"kind": "joined", "client": "münster", "counts": {"cat": 3}},
    {"kind": "something new"},
]


def written(path: Path) -> Path:
    with path.open("ab") as file:
        log = EventLog(file)
        for record in RECORDS:
            log.write(record)
        assert log.to_disk() == path.stat().st_size
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    assert list(read_log(path)) == RECORDS
    assert path.read_bytes().count(b"\n") == len(RECORDS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"kind":"arr', "line 4 is no record of an event log; was the run cut off"),
        (b"[]\n", "line 4 is no record"),
        (b'{"event":1}\n', "line 4 is no record"),
        (b"[" * 100_000 + b"\n", "line 4 is no record"),
        (b'{"kind":"start","format":9}\n', "has format 9, this fedraw reads 1"),
        (b"\xff\n", "cannot read"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(BadInput, match=message):
        list(read_log(path))


def test_so_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*nowhere\.jsonl"):
        list(read_log(tmp_path / "nowhere.jsonl"))
