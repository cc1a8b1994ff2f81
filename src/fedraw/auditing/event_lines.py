"""Reads the arrivals of an event log as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedraw.eventlog.log_file import Chain
from fedraw.eventlog.records import ArrivalRecord
from fedraw.storage.tables import Row, TableFile, head, open_bytes, read_errors, require_text


def is_event_log(path: Path) -> bool:
    """Whether the file is an event log, by its name or its first bytes."""
    return path.suffix == ".jsonl" or head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def open_event_log(path: Path) -> TableFile:
    """Open an event log as a table of clients and timestamps."""
    require_text(path)
    return TableFile(
        path, ("client", "timestamp"), "line", rows=lambda: _rows(path), batches=lambda: iter(())
    )


def _rows(path: Path) -> Iterator[Row]:
    chain = Chain()
    with read_errors(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            record = chain.decode(line, path)
            if isinstance(record, ArrivalRecord):
                yield number, (str(record.client), repr(record.time))
