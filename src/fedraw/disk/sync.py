"""What has to survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Make sure that a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
