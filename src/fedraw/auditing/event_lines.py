"""The arrivals in fedraw's own event log, one JSON record a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedraw.disk.event_log import Chain, Record
from fedraw.disk.tables import Row, TableFile, head, open_bytes, read_errors, require_text
from fedraw.errors import BadInput


def is_event_log(path: Path) -> bool:
    return path.suffix == ".jsonl" or head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def open_event_log(path: Path) -> TableFile:
    """As if it were a table of clients and timestamps."""
    require_text(path)
    return TableFile(
        path, ("client", "timestamp"), "line", rows=lambda: _rows(path), batches=lambda: iter(())
    )


def _rows(path: Path) -> Iterator[Row]:
    chain = Chain()
    with read_errors(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            record = chain.record(line, path)
            if record["kind"] == "arrival":
                yield number, _arrival(path, number, record)


def _arrival(path: Path, number: int, record: Record) -> tuple[str, str]:
    client, time = record.get("client"), record.get("time")
    if type(client) not in (int, str) or type(time) not in (int, float):
        raise BadInput(
            f"{path}: line {number} is an arrival without a client and a time; name an "
            "events.jsonl, or a table with the columns client,seconds or client,timestamp"
        )
    return str(client), repr(time)
