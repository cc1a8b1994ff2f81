"""A file read while it grows: each look reads what was appended since the last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

# Read at once; some milliseconds of work.
PIECE = 1 << 18
# So many bytes at the beginning, and before the place reached, must still be what they were, or
# the log was written anew.
HEAD, MARK = 1024, 64


class Tail:
    """The whole lines of a file that grows, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self.size = 0
        self.written = 0.0
        self._cut: list[bytes] = []  # pieces of a line whose end has not been read yet
        self._head = b""
        self._mark = b""

    def read(self) -> list[bytes] | None:
        """The lines of the next piece, none at the end; None if the file is another one by now."""
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            self.size, self.written = status.st_size, status.st_mtime
            if self.size < self.position or not self._goes_on(file):
                return None
            piece = file.read(PIECE)
        self.position += len(piece)
        self._head += piece[: HEAD - len(self._head)]
        self._mark = (self._mark + piece)[-MARK:]
        first, *others = piece.split(b"\n")
        self._cut.append(first)
        if not others:
            return []
        lines = [b"".join(self._cut), *others[:-1]]
        self._cut = others[-1:]
        return lines

    @property
    def is_current(self) -> bool:
        """Whether the file has not changed since it was last read."""
        try:
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size == self.size and self._goes_on(file)
        except OSError:
            return False

    @property
    def unread(self) -> int:
        return max(0, self.size - self.position)

    @property
    def could_become_a_record(self) -> bool:
        """Whether the line whose end is not written yet can be the beginning of a record."""
        unfinished = b"".join(self._cut)
        return unfinished[:1] in {b"", b"{"} and b"\0" not in unfinished

    def _goes_on(self, file: IO[bytes]) -> bool:
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self.position - len(self._mark))
        return file.read(len(self._mark)) == self._mark


def modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # just removed
        return 0.0
