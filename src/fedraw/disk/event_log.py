"""The event log: one JSON record a line, the same from a simulation and from a real server.

start       strategy, seed (None on a real server), spec, what counts as rare
joined      a client and its label counts: at the start, or at any time later
left        a member that is gone, and why
declared    a member that reports other counts; without counts, what is known of a false claim
arrival     one update reaching the server, and what it did
rejected    an update that was refused, and why
doubted     a label claim that a client's updates contradict
note        what else happened: an overdue, a duplicate, a quarantined client
evaluation  what the global model could do after an event
restarted   the server was down: for how many seconds, and whom it asked again
end         the run is complete
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedraw.core.witness import Doubt, Inferred, News
from fedraw.errors import BadInput

FORMAT = 1
Record = dict[str, Any]


def inferred_record(inferred: Inferred | None) -> Record:
    """A part of an evaluation, where labels are inferred."""
    return {} if inferred is None else {"inferred": inferred._asdict()}


def doubt_record(news: News, event: int, time: float) -> Record:
    """A claim is doubted, or no longer."""
    kind = "doubted" if isinstance(news, Doubt) else "cleared"
    return {"kind": kind, "event": event, "time": time, **news._asdict()}


class EventLog:
    """Appends records to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # Without the search for cycles, of which these records have none, it is quicker.
        self._encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

    def write(self, record: Record) -> None:
        self._file.write(self._encode(record).encode() + b"\n")

    def flush(self) -> None:
        """Show readers what was written so far."""
        self._file.flush()

    def to_disk(self) -> int:
        """Make sure that everything written survives; return the log's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def read_log(path: Path) -> Iterator[Record]:
    """The records of a log; an unreadable one is an error that names the line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _record(line, path, number)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"cannot read {path}: {problem}") from None


def _record(line: str, path: Path, number: int) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or "kind" not in record:
        raise BadInput(f"{path}, line {number} is no record of an event log; was the run cut off?")
    if record["kind"] == "start" and record.get("format") != FORMAT:
        raise BadInput(
            f"{path} has format {record.get('format')!r}, this fedraw reads {FORMAT}; run it again"
        )
    return record
