"""What has to survive a kill and a power cut."""

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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one move: whenever the process ends, the old content is there or the new."""
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_bytes(content)
    except OSError as problem:  # a full disk is reported without the name of the file
        raise OSError(problem.errno, problem.strerror, str(draft)) from None
    to_disk(draft)
    draft.replace(path)
    to_disk(path.parent)
