"""Writes files that are complete or absent, survive a power failure, and can be private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedraw.errors import BadInput

# Modes of files and folders that only their owner can read.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
# The suffix of an incomplete file or folder.
PARTIAL = ".part"


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of files, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a draft; when the block ends, flush the draft and rename it to `path`.

    Whenever the process ends, `path` has either its old or its complete new content. An exception
    removes the draft and leaves `path` unchanged. A symbolic link stays, and its target is written.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or pipe"
        raise BadInput(f"{path} is {kind}, which a file cannot replace; name a file")
    path = Path(os.path.realpath(path))
    draft = path.with_name(f"{path.name}{PARTIAL}")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, *parts: bytes | memoryview, private: bool = False) -> None:
    """Write a file completely or not at all, and flush it to the disk before returning.

    Args:
        path: The file to create or replace.
        *parts: The parts of its content, which are not joined in memory.
        private: Whether only the owner may read the file, whatever the umask of the process.

    """
    with atomic_file(path) as draft:
        try:
            with open(draft, "wb", buffering=0, opener=private_opener if private else None) as file:
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[file.write(rest) or 0 :]
        except OSError as problem:  # Python's error for a full disk does not name the file
            raise OSError(problem.errno, problem.strerror, str(draft)) from None


def drop_from_page_cache(path: Path) -> None:
    """Tell the system that nobody will read the file soon, which frees its memory."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError), path.open("rb") as file:  # some file systems do not support it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def private_opener(path: str, flags: int) -> int:
    """Open a file that only its owner can read; pass this function to `open` as its opener."""
    handle = os.open(path, flags, PRIVATE_FILE)
    os.fchmod(handle, PRIVATE_FILE)
    return handle


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can access; an existing folder keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(PRIVATE_FOLDER, exist_ok=True)
