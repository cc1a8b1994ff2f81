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

The last field of every line, `digest`, covers the line and, through the digest of the line before,
everything above it. A changed, missing, repeated or moved line is therefore found when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedraw.core.types import Doubt, Finding, InferredLabels
from fedraw.errors import BadInput, nearest

FORMAT = 2
Record = dict[str, Any]

KINDS = frozenset(
    [
        "start",
        "joined",
        "left",
        "declared",
        "arrival",
        "rejected",
        "doubted",
        "cleared",
        "note",
        "scores",
        "evaluation",
        "restarted",
        "end",
    ]
)
# What to do about a damaged log, if its reader does not know better.
REMEDY = "restore the file from a copy, or run it again with --force"
# The end of every line: a field with 16 hexadecimal digits.
_FIELD = b',"digest":"'
_SUFFIX = len(_FIELD) + 16 + len(b'"}\n')


def inferred_record(inferred: InferredLabels | None) -> Record:
    """A part of an evaluation, where labels are inferred."""
    return {} if inferred is None else {"inferred": inferred._asdict()}


def doubt_record(news: Finding, event: int, time: float) -> Record:
    """A claim is doubted, or no longer."""
    kind = "doubted" if isinstance(news, Doubt) else "cleared"
    return {"kind": kind, "event": event, "time": time, **news._asdict()}


class Position(NamedTuple):
    """A place between two lines of a log: what lies before it, and the digest that covers it."""

    length: int = 0  # bytes
    lines: int = 0
    digest: str = "0" * 16


class Chain:
    r"""Turns records into lines and back, each bound to the lines before it by its digest.

    >>> line = Chain().line({"kind": "end", "event": 3})
    >>> line
    b'{"kind":"end","event":3,"digest":"a8bc83ccac7fdf2d"}\n'
    >>> Chain().record(line, Path("events.jsonl"))
    {'kind': 'end', 'event': 3}
    """

    def __init__(self, position: Position | None = None, remedy: str = REMEDY) -> None:
        self.position = position or Position()
        self._remedy = remedy
        # Records have no cycles, and the search for them takes time.
        self._encode = json.JSONEncoder(
            separators=(",", ":"), check_circular=False, allow_nan=False
        ).encode

    def line(self, record: Record) -> bytes:
        """The record's line, which the next one continues."""
        content = self._encode(record).encode()
        digest = self._digest(content)
        line = content[:-1] + _FIELD + digest.encode() + b'"}\n'
        self._advance(line, digest)
        return line

    def record(self, line: bytes, path: Path) -> Record:
        """The record of the next line; BadInput if the line is damaged or does not continue."""
        where = f"{path}, line {self.position.lines + 1}"
        record = _parse(line, path, where, self._remedy)
        suffix = line[-_SUFFIX:]
        digest = self._digest(line[:-_SUFFIX] + b"}")
        if suffix != _FIELD + digest.encode() + b'"}\n':
            raise BadInput(
                f"{where} was altered, or lines before it are missing: its digest does not fit; "
                f"{self._remedy}"
            )
        del record["digest"]
        self._advance(line, digest)
        return record

    def _digest(self, content: bytes) -> str:
        before = self.position.digest.encode()
        return hashlib.blake2b(before + content, digest_size=8).hexdigest()

    def _advance(self, line: bytes, digest: str) -> None:
        length, lines, _ = self.position
        self.position = Position(length + len(line), lines + 1, digest)


class EventLog:
    """Appends records to a file that ends at `position`."""

    def __init__(self, file: IO[bytes], position: Position | None = None) -> None:
        self._file = file
        self._chain = Chain(position)

    def write(self, record: Record) -> None:
        try:
            self._file.write(self._chain.line(record))
        except OSError as problem:
            raise self._named(problem) from None

    def flush(self) -> None:
        """Show readers what was written so far."""
        try:
            self._file.flush()
        except OSError as problem:
            raise self._named(problem) from None

    def to_disk(self) -> Position:
        """Make sure that everything written survives; return where the log ends."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._chain.position

    def _named(self, problem: OSError) -> OSError:
        """A write that fails, as on a full disk, does not say to which file."""
        return OSError(problem.errno, problem.strerror, str(self._file.name))


def read_log(
    path: Path,
    since: Position | None = None,
    until: Position | None = None,
    remedy: str = REMEDY,
) -> Iterator[Record]:
    """The verified records of a log, or those between two positions.

    A damaged, missing, repeated or moved line is a BadInput that names the file and the line.
    """
    chain = Chain(since, remedy)
    try:
        with path.open("rb") as file:
            file.seek(chain.position.length)
            while until is None or chain.position.length < until.length:
                line = file.readline()
                if not line:
                    break
                yield chain.record(line, path)
    except OSError as problem:
        raise BadInput(f"cannot read {path}: {problem.strerror}") from None
    if until is not None and chain.position != until:
        raise BadInput(
            f"{path} is not the log that was written: its first {until.lines} lines are incomplete "
            f"or not the same; {remedy}"
        )


def _parse(line: bytes, path: Path, where: str, remedy: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise BadInput(
            f"{where} is no record of an event log; was the run cut off? "
            f"{remedy[0].upper()}{remedy[1:]}"
        )
    if record["kind"] == "start" and record.get("format") != FORMAT:
        raise BadInput(
            f"{path} has format {record.get('format')!r}, and this fedraw reads format {FORMAT}; "
            "run it again, or read it with the version of fedraw that wrote it"
        )
    if record["kind"] not in KINDS:
        kind = record["kind"][:40]
        raise BadInput(f"{where} is a record of the unknown kind {kind!r}; {nearest(kind, KINDS)}")
    return record
