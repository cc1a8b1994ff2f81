"""The files of an event log: a long log continues in numbered files, which are read as one.

events.jsonl          the first file
events.000002.jsonl   the second file, and so on

Only the last file grows. Every other file ends with a `continued` record. The writer creates the
next file before it writes this record, so a `continued` record without the next file means that the
next file was lost. A file after one without a `continued` record is still empty.
"""

from __future__ import annotations

import io
import re
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from fedraw.errors import BadInput

_BUFFER = 1 << 16
_BREAK = b"\n"
_NUMBERED = re.compile(r"(.+)\.(\d{6})")


def segment(log: Path, number: int) -> Path:
    """Return the file of a log with this number; the first file is the log itself.

    >>> segment(Path("events.jsonl"), 2).name
    'events.000002.jsonl'
    """
    return log if number == 1 else log.with_name(f"{log.stem}.{number:06d}{log.suffix}")


def refuse_segment(path: Path) -> None:
    """Refuse a later file of a log, because a log is named by its first file.

    >>> refuse_segment(Path("events.000002.jsonl"))
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: events.000002.jsonl continues a log that begins in events.jsonl; name \
events.jsonl
    """
    found = _NUMBERED.fullmatch(path.stem)
    if path.suffix == ".jsonl" and found:
        first = path.with_name(f"{found[1]}{path.suffix}")
        raise BadInput(f"{path} continues a log that begins in {first}; name {first}")


def files_of(log: Path) -> list[Path]:
    """Return the files of a log in order; the last may be empty."""
    paths = [log]
    while (following := segment(log, len(paths) + 1)).exists():
        paths.append(following)
    return paths


def parts_of(log: Path) -> list[tuple[Path, int]]:
    """Return the files of a log and their sizes in order, without empty files at the end.

    The sizes are read from the last file to the first: once a file has content, the previous file
    has its final size. A log that does not exist has no parts.
    """
    parts: list[tuple[Path, int]] = []
    for path in reversed(files_of(log)):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return []
        if size or parts or path == log:
            parts.append((path, size))
    return parts[::-1]


def log_size(log: Path) -> int:
    """Return the bytes of a log in all of its files; 0 if it does not exist."""
    return sum(size for _, size in parts_of(log))


def modified(log: Path) -> float:
    """Return the time of the last change of a log in unix seconds; 0 if it does not exist."""
    try:
        return max(path.stat().st_mtime for path, _ in parts_of(log))
    except (OSError, ValueError):
        return 0.0


def open_log(log: Path) -> BinaryIO:
    """Open a log for reading, with all of its files as one."""
    parts = parts_of(log)
    if len(parts) < 2:
        return log.open("rb")
    return io.BufferedReader(_ConcatenatedFiles(parts), _BUFFER)


def location(log: Path, length: int, lines: int) -> str:
    """Return the file and line that begin after this many bytes and lines of a log."""
    parts = parts_of(log)
    starts = [0, *accumulate(size for _, size in parts[:-1])]
    number = sum(start <= length for start in starts) - 1
    if number == 0:
        return f"{log}, line {lines + 1}"
    path, _ = parts[number]
    with path.open("rb") as file:
        before = file.read(length - starts[number])
    return f"{path}, line {before.count(_BREAK) + 1}"


class _ConcatenatedFiles(io.RawIOBase):
    """Several files as one; the last may grow."""

    def __init__(self, parts: list[tuple[Path, int]]) -> None:
        super().__init__()
        self._files = [path.open("rb", buffering=0) for path, _ in parts]
        self._starts = [0, *accumulate(size for _, size in parts[:-1])]
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._starts[-1] + self._files[-1].seek(0, io.SEEK_END)
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = offset
        return offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        number = sum(start <= self._position for start in self._starts) - 1
        file, local = self._files[number], self._position - self._starts[number]
        wanted = len(buffer)
        if number + 1 < len(self._files):
            wanted = min(wanted, self._starts[number + 1] - self._position)
        file.seek(local)
        read = file.readinto(memoryview(buffer)[:wanted]) or 0
        self._position += read
        return read

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()
