"""Files and folders that only their owner can read, whatever the process's umask allows."""

from __future__ import annotations

import os
from pathlib import Path

FILE, FOLDER = 0o600, 0o700


def opener(path: str, flags: int) -> int:
    """For `open`: a new file is private from its first byte on, and an old one becomes so."""
    handle = os.open(path, flags, FILE)
    os.fchmod(handle, FILE)
    return handle


def make_folder(path: Path) -> None:
    """Make the folder unless it is there; one that is there keeps the mode its owner chose."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(FOLDER, exist_ok=True)
