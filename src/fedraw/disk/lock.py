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


def lock(
    file: IO[bytes], path: Path, remedy: str = "wait for it, or choose another folder"
) -> None:
    """Hold `file` for this process until it is closed; `path` is what a refusal names.

    The lock goes with the process, however that ends.
    """
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
