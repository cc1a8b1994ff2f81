"""Seals the summary of a finished run in `summary.json`, and reads it back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, Position, read_log, verify_log
from fedraw.eventlog.records import Record

SUMMARY = "summary.json"
# summary.json ends with the checksum of everything before it.
_FIELD = b',\n  "sha256": "'
_SUFFIX = len(_FIELD) + 64 + len(b'"\n}\n')


class SealedSummary(NamedTuple):
    """A verified summary, and its information about other files in the folder."""

    content: dict[str, Any]
    log: Position  # the end of the log
    sha256: Mapping[str, str]  # checksums of other files, by name


def seal(content: Mapping[str, Any], log: Position, sha256: Mapping[str, str]) -> bytes:
    """Return the bytes of a summary.json: the summary, the log's end, checksums of other files."""
    files = {LOG: log._asdict(), **sha256}
    body = json.dumps({**content, "files": files}, indent=2).encode()[: -len(b"\n}")]
    return body + _suffix(body)


def read_sealed(path: Path) -> SealedSummary:
    """Read a summary.json; raise BadInput if any byte has changed."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise damaged(path, f"cannot be read ({problem.strerror})") from None
    if content[-_SUFFIX:] != _suffix(content[:-_SUFFIX]):
        raise damaged(path, "was altered, or is of another version: its checksum does not match")
    summary = json.loads(content)
    files = summary.pop("files")
    del summary["sha256"]
    return SealedSummary(summary, Position(**files.pop(LOG)), files)


def end_of_log(log: Path) -> Position | None:
    """Return the end of a finished log according to its summary.json; None without a summary.

    A log of another length is a BadInput.
    """
    summary = log.with_name(SUMMARY)
    if log.name != LOG or not summary.exists():
        return None
    end = read_sealed(summary).log
    size = log.stat().st_size if log.exists() else 0
    if size != end.length:
        verify_log(log, end)  # names the damaged line, if there is one
        raise damaged(log, f"has {size} bytes, but {SUMMARY} belongs to a log of {end.length}")
    return end


def read_run(log: Path) -> Iterator[Record]:
    """Yield the records of a run: all those that its summary.json belongs to, if there is one.

    Without a summary, the log may end in a line that was cut off when the run was killed.
    """
    return read_log(log, until=end_of_log(log), allow_cut_off=True)


def _suffix(body: bytes) -> bytes:
    return _FIELD + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def damaged(path: Path, problem: str) -> BadInput:
    """Return the error for a damaged file of a finished run."""
    return BadInput(f"{path} {problem}; restore it from a copy, or run it again with force=True")
