"""One process per folder."""

from __future__ import annotations

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
