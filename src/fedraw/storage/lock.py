"""One process per folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from fedraw.errors import BadInput

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix: there two processes may write to one folder
    fcntl = None  # type: ignore[assignment]

# The file that is locked. It is empty and serves no other purpose, so nobody has a reason to rename
# or replace it while it is held; a lock on any other file would be lost with that file's name.
LOCK = "lock"
REMEDY = "wait for it, or choose another folder"


class FolderLock:
    """Keeps other processes out of a folder until it is closed.

    The lock goes with the process, however that ends; its file stays, and means nothing by itself.
    """

    def __init__(self, folder: Path, remedy: str = REMEDY) -> None:
        self.path = folder / LOCK
        self._file = self.path.open("ab", buffering=0)
        try:
            lock(self._file, folder, remedy)
        except BadInput:
            self._file.close()
            raise

    @property
    def is_intact(self) -> bool:
        """Whether another process would still meet this lock: its file was not removed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._file.close()


def lock(file: IO[bytes], path: Path, remedy: str = REMEDY) -> None:
    """Hold `file` for this process until it is closed; `path` is what a refusal names."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(f"another process is running {path}; {remedy}") from None


def is_locked(path: Path, table: Path = Path("/proc/locks")) -> bool:
    """Whether a process of this machine holds the file; False where that cannot be seen.

    The kernel's table is read, because to try the lock would take it from one that starts now.
    """
    try:
        status = path.stat()
        held = table.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in held)
