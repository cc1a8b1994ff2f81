"""The event log of a server that may stop at any byte, on a disk that may be full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedraw.disk.event_log import Chain, Position, Record, read_log
from fedraw.disk.lock import lock
from fedraw.errors import BadInput


class ServerLog:
    """Appends to `events.jsonl`; what cannot be written now is kept and written later.

    One process at a time: the lock goes with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as problem:
            raise BadInput(
                f"cannot write to {path.parent}: {problem.strerror}; set another folder"
            ) from None
        self._waiting = b""
        try:
            lock(self._file, path.parent)
        except BadInput:
            self._file.close()
            raise
        self._cut_torn_line()
        self._chain = Chain()

    def __len__(self) -> int:
        """Bytes on disk."""
        return os.fstat(self._file.fileno()).st_size

    def note(self, record: Record) -> None:
        """Write if the disk allows it, else later."""
        self._waiting += self._chain.line(record)
        try:
            self.flush()
        except OSError:
            return

    def commit(self, record: Record) -> None:
        """On disk for certain when this returns; after an OSError as if it had never been."""
        self.flush()
        length, before = len(self), self._chain.position
        line = self._chain.line(record)
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
            os.fsync(self._file.fileno())
        except OSError:
            self._chain.position = before
            os.ftruncate(self._file.fileno(), length)
            raise

    def flush(self) -> None:
        """Write what waits, in its order."""
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) or 0 :]

    def to_disk(self) -> Position:
        """Make sure that everything written survives; return where the log ends."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._chain.position

    def verify(self, position: Position) -> Iterator[Record]:
        """The records since `position`; all lines are verified, and later ones continue them."""
        for _ in read_log(self.path, until=position):
            pass
        self._chain = Chain(position)
        with self.path.open("rb") as file:
            file.seek(position.length)
            for line in file:
                yield self._chain.record(line, self.path)

    def clear(self) -> None:
        self._waiting, self._chain = b"", Chain()
        os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        self._file.close()

    def _cut_torn_line(self) -> None:
        """A process that was killed may have left half a line."""
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.ftruncate(self._file.fileno(), content.rfind(b"\n") + 1)
