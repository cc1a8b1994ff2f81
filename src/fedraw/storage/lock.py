"""Locks between processes of one machine.

The locks are advisory (flock). They end with the process that holds them, however it ends. They do
not reliably work between machines that share a network disk, and not at all on Windows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from fedraw.errors import BadInput

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where two processes may write to one folder
    fcntl = None  # type: ignore[assignment]

# The file that is locked. It is empty and serves no other purpose, so nobody has a reason to rename
# or replace it while it is held; a lock on any other file would be lost with that file's name.
LOCK = "lock"


class FolderLock:
    """Keeps other processes out of a folder until the lock is closed.

    Its file stays in the folder and means nothing by itself.
    """

    def __init__(self, folder: Path, remedy: str = "wait for it, or choose another folder") -> None:
        self.path = folder / LOCK
        self._file = self.path.open("ab", buffering=0)
        if not acquire(self._file):
            self._file.close()
            raise BadInput(f"another process is running {folder}; {remedy}")

    @property
    def is_intact(self) -> bool:
        """Whether other processes still see this lock, because its file was not removed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the folder."""
        self._file.close()


def acquire(file: IO[bytes] | int, *, wait: bool = False) -> bool:
    """Lock an open file for this process until it is closed.

    Return False if another process holds it; with `wait`, wait for that process instead.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path, table: Path = Path("/proc/locks")) -> bool:
    """Whether a process of this machine holds the file; False where the system does not tell.

    This reads the kernel's table. Trying the lock could keep out a process that is starting.
    """
    try:
        status = path.stat()
        held = table.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in held)
