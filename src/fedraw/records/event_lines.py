"""The arrivals in fedraw's own event log, one JSON record a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.records.files import head, open_text, read_errors, require_text
from fedraw.records.table_file import Row, TableFile


def is_event_log(path: Path) -> bool:
    return path.suffix == ".jsonl" or head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def open_event_log(path: Path) -> TableFile:
    """As if it were a table of clients and timestamps."""
    require_text(path)
    return TableFile(
        path, ("client", "timestamp"), "line", rows=lambda: _rows(path), batches=lambda: iter(())
    )


def _rows(path: Path) -> Iterator[Row]:
    with read_errors(path), open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = _arrival(path, number, line)
                if row is not None:
                    yield number, row


def _arrival(path: Path, number: int, line: str) -> tuple[str, str] | None:
    try:
        record = json.loads(line)
        if record["kind"] != "arrival":
            return None
        client, time = record["client"], record["time"]
    except (ValueError, RecursionError, TypeError, KeyError):
        client = time = None
    if type(client) not in (int, str) or type(time) not in (int, float):
        raise BadInput(
            f"{path}: line {number} is no record of an event log with a client and a time; "
            "name an events.jsonl, or a table with the columns client,seconds or client,timestamp"
        )
    return str(client), repr(time)
