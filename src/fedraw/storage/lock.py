"""Locks between the processes of one machine.

The locks are advisory (flock). They end with the process that holds them, however it ends. They are
unreliable between machines that share a network disk, and have no effect on Windows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from fedraw.errors import FolderUnavailable

try:
    import fcntl
except ModuleNotFoundError:  # on Windows, locks have no effect
    fcntl = None  # type: ignore[assignment]

# The locked file. It is empty and has no other purpose, so nobody has a reason to rename or replace
# it. A lock on any other file would be lost when that file is renamed.
LOCK = "lock"


class FolderLock:
    """Excludes other processes from a folder until the lock is closed.

    The file of the lock stays in the folder; the file alone does not lock anything.
    """

    def __init__(self, folder: Path, remedy: str = "wait for it, or choose another folder") -> None:
        self.path = folder / LOCK
        self._file = self.path.open("ab", buffering=0)
        if not acquire(self._file):
            self._file.close()
            raise FolderUnavailable(f"another process is running in {folder}; {remedy}")

    @property
    def is_intact(self) -> bool:
        """Whether the lock's file is unchanged, so that other processes still see the lock."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the folder."""
        self._file.close()


def acquire(file: IO[bytes] | int, *, wait: bool = False) -> bool:
    """Lock an open file for this process until the file is closed.

    Return False if another process has locked it; with `wait`, wait for that process instead.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path, table: Path = Path("/proc/locks")) -> bool:
    """Return whether a process of this machine has locked the file; False if this is unknown.

    The function reads the kernel's table of locks. Acquiring the lock instead could block a process
    that is starting.
    """
    try:
        status = path.stat()
        held = table.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in held)
