"""Writing files so that they are complete or absent, survive a power cut, and stay private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Modes of files and folders that only their owner can read.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
# The suffix of a file that is being written.
PARTIAL = ".part"


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk."""
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
    """Yield a draft's path; when the block ends, flush the draft and rename it to `path`.

    Whenever the process ends, `path` has its old content or the complete new one. An exception
    removes the draft and leaves `path` as it was.
    """
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
    """Write a file completely or not at all; it is on the disk when this returns.

    Args:
        path: The file to create or replace.
        *parts: Its content, which is written without being joined in memory.
        private: Whether only the owner may read the file, whatever the umask of the process.

    """
    with atomic_file(path) as draft:
        try:
            with open(draft, "wb", buffering=0, opener=private_opener if private else None) as file:
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[file.write(rest) or 0 :]
        except OSError as problem:  # a full disk is reported without the name of the file
            raise OSError(problem.errno, problem.strerror, str(draft)) from None


def drop_from_page_cache(path: Path) -> None:
    """Tell the system that nobody will read the file soon, so that others can use its memory."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError), path.open("rb") as file:  # some file systems do not support it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def private_opener(path: str, flags: int) -> int:
    """For `open`: make the file readable by its owner only, from its first byte on."""
    handle = os.open(path, flags, PRIVATE_FILE)
    os.fchmod(handle, PRIVATE_FILE)
    return handle


def make_private_folder(path: Path) -> None:
    """Create the folder for its owner only; an existing folder keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(PRIVATE_FOLDER, exist_ok=True)
