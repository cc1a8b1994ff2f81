"""Reads and writes event logs: one JSON record per line, chained by digests.

The last field of every line, `digest`, covers the line and, through the digest of the previous
line, all lines before it. So a reader finds every changed, missing, repeated or moved line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.records import FORMAT, Record, from_fields, to_fields

LOG = "events.jsonl"
# Servers of fedraw 0.2 continued a long log in files with these names.
NUMBERED = "events.[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"
# The remedy for a damaged log, unless the caller gives another one.
REMEDY = "restore the file from a copy, or run it again with force=True"
# The end of every line: a field with 16 hexadecimal digits.
_FIELD = b',"digest":"'
_END = b'"}\n'
_SUFFIX = len(_FIELD) + 16 + len(_END)


class Position(NamedTuple):
    """A position between two lines of a log: the bytes, lines and digest before it."""

    length: int = 0  # in bytes
    lines: int = 0
    digest: str = "0" * 16


def _json_encoder() -> Callable[[object], str]:
    """Return a function that encodes JSON without spaces and refuses NaN.

    `JSONEncoder.encode` creates json's C encoder in every call, which takes a tenth of the time of
    a line, so this function creates it once. It does not search for cycles, because records have
    none.
    """
    encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)
    in_c: Any = getattr(json.encoder, "c_make_encoder", None)
    if in_c is None:  # not every Python implements json in C
        return encoder.encode
    quote = json.encoder.encode_basestring_ascii
    pieces = in_c(None, encoder.default, quote, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_to_json = _json_encoder()


class Chain:
    r"""Encodes records as lines and decodes lines; a digest chains each line to those before it.

    >>> from fedraw.eventlog.records import EndRecord
    >>> line = Chain().encode(EndRecord(event=3, time=1.5))
    >>> line
    b'{"kind":"end","event":3,"time":1.5,"digest":"726c9a54ff353e01"}\n'
    >>> Chain().decode(line, Path("events.jsonl"))
    EndRecord(event=3, time=1.5, reason=None, costs=None)
    """

    def __init__(self, position: Position | None = None, remedy: str = REMEDY) -> None:
        self.position = position or Position()
        self._remedy = remedy

    @property
    def position(self) -> Position:
        """The position at which the next line begins."""
        return Position(self._length, self._lines, self._digest.decode())

    @position.setter
    def position(self, position: Position) -> None:
        self._length, self._lines = position.length, position.lines
        self._digest = position.digest.encode()

    def encode(self, record: Record) -> bytes:
        """Return the line of a record, and advance the position."""
        return self.encode_fields(to_fields(record))

    def encode_fields(self, fields: dict[str, Any]) -> bytes:
        """Return the line of any JSON object, and advance the position."""
        content = _to_json(fields).encode()
        digest = self._next_digest(content)
        line = content[:-1] + _FIELD + digest + _END
        self._advance(line, digest)
        return line

    def decode(self, line: bytes, path: Path) -> Record:
        """Return the record of the next line; raise BadInput if it is damaged or misplaced."""
        fields = self._parse(line, path)
        digest = self._next_digest(line[:-_SUFFIX] + b"}")
        if line[-_SUFFIX:] != _FIELD + digest + _END:
            raise BadInput(
                f"{self.location(path)} was altered, or lines before it are missing: its digest "
                f"does not match; {self._remedy}"
            )
        del fields["digest"]
        try:
            record = from_fields(fields)
        except ValueError as problem:
            raise BadInput(
                f"{self.location(path)} is not valid in an event log: {problem}; {self._remedy}"
            ) from None
        self._advance(line, digest)
        return record

    def _parse(self, line: bytes, path: Path) -> dict[str, Any]:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise BadInput(
                f"{self.location(path)} is not a record of an event log; was the run cut off? "
                f"{self._remedy[0].upper()}{self._remedy[1:]}"
            )
        if fields["kind"] == "start" and fields.get("format") != FORMAT:
            raise BadInput(
                f"{path} has format {fields.get('format')!r}, and this fedraw reads format "
                f"{FORMAT}; run it again, or read it with the version of fedraw that wrote it"
            )
        return fields

    def location(self, path: Path) -> str:
        """Return the file and the number of the next line, for messages."""
        return f"{path}, line {self._lines + 1}"

    def _next_digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(self._digest + content, digest_size=8).hexdigest().encode()

    def _advance(self, line: bytes, digest: bytes) -> None:
        self._length += len(line)
        self._lines += 1
        self._digest = digest


class LogWriter:
    """Appends records to an open file that ends at `position`."""

    def __init__(self, file: IO[bytes], position: Position | None = None) -> None:
        self._file = file
        self._chain = Chain(position)

    def write(self, record: Record) -> None:
        """Append a record; readers see it after the next `flush`."""
        try:
            self._file.write(self._chain.encode(record))
        except OSError as problem:
            raise self._named(problem) from None

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        try:
            self._file.flush()
        except OSError as problem:
            raise self._named(problem) from None

    def to_disk(self) -> Position:
        """Flush everything written to the disk; return the position at which the log ends."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._chain.position

    def _named(self, problem: OSError) -> OSError:
        """Return the error with the file's name, which Python omits when a write fails."""
        return OSError(problem.errno, problem.strerror, str(self._file.name))


def read_log(
    path: Path,
    since: Position | None = None,
    until: Position | None = None,
    remedy: str = REMEDY,
    *,
    allow_cut_off: bool = False,
) -> Iterator[Record]:
    """Yield the verified records of a log, or those between two positions.

    A damaged, missing, repeated or moved line is a BadInput that names the file and the line. With
    `allow_cut_off`, an incomplete last line of a killed process is skipped.
    """
    require_one_file(path)
    chain = Chain(since, remedy)
    try:
        with path.open("rb") as file:
            file.seek(chain.position.length)
            while until is None or chain.position.length < until.length:
                line = file.readline()
                if not line or (allow_cut_off and is_cut_off(line)):
                    break
                yield chain.decode(line, path)
    except OSError as problem:
        raise BadInput(f"cannot read {path}: {problem.strerror}; {remedy}") from None
    if until is not None and chain.position != until:
        raise BadInput(
            f"{path} is not the log that was written: its first {until.lines} lines are missing "
            f"or different; {remedy}"
        )


def verify_log(path: Path, until: Position | None = None, remedy: str = REMEDY) -> None:
    """Verify every line of a log, or those before a position, as `read_log` does."""
    for _ in read_log(path, until=until, remedy=remedy):
        pass


def require_one_file(log: Path) -> None:
    """Refuse a log that a server of fedraw 0.2 has continued in numbered files.

    The function looks only for files, so it takes the path of any of them.
    """
    if (log.name == LOG or log.match(NUMBERED)) and any(log.parent.glob(NUMBERED)):
        raise BadInput(
            f"the log in {log.parent} is in several files, which fedraw 0.2 was the last version "
            f"to write; stop its server, and join them with: fedraw server join {log.parent}"
        )


def log_size(log: Path) -> int:
    """Return the bytes of a log; 0 if it does not exist."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def modified(log: Path) -> float:
    """Return the time of the last change of a log in unix seconds; 0 if it does not exist."""
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


def is_cut_off(line: bytes) -> bool:
    r"""Return whether a last line is an incomplete record.

    A line with zero bytes is not: a file system may leave zeros after a power failure.

    >>> is_cut_off(b'{"kind":"arr'), is_cut_off(b'{"kind":"end"}\n'), is_cut_off(b'{"kind\0\0')
    (True, False, False)
    """
    return line.startswith(b"{") and not line.endswith(b"\n") and b"\0" not in line


def find_logs(folder: Path) -> list[Path]:
    """Return the event logs at or below a folder; seeds are in numerical order.

    A finished run without its log is a BadInput, so that no seed is silently omitted.
    """
    if folder.is_file():
        require_one_file(folder)
        return [folder]
    if not folder.is_dir():
        raise BadInput(f"{folder} does not exist; name a folder that 'fedraw run' has written")
    logs = sorted(folder.rglob(LOG), key=lambda log: (log.parent.parent, _seed(log)))
    rotated = None if logs else min(folder.rglob(f"{LOG}.*"), default=None)
    if rotated:
        raise BadInput(
            f"{folder} holds no run: there is no {LOG} in it or below it; is it {rotated}? "
            "Then rename it, and exempt it from log rotation"
        )
    for spec in folder.rglob("spec.toml"):
        run = spec.parent
        if (run / "summary.json").exists() and not (run / LOG).exists():
            raise BadInput(f"{run} is a finished run, but its {LOG} is missing; {REMEDY}")
    if not logs:
        raise BadInput(
            f"{folder} holds no run: there is no {LOG} in it or below it; name a folder that "
            "'fedraw run' or a server has written"
        )
    return logs


def _seed(log: Path) -> tuple[int, str]:
    number = log.parent.name.removeprefix("seed-")
    return (int(number) if number.isdigit() else -1, number)
