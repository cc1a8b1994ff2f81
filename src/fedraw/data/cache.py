"""Arrays that are costly to make, kept in files and read through memory maps.

An entry is a folder, `<name>-<key>`, of .npy files and meta.json; its key is made of everything
that the arrays depend on. It is written as `<entry>.part` and renamed when whole, so a process
that dies leaves nothing that looks whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.data.npy_file import write_npy
from fedraw.data.progress import Progress
from fedraw.errors import BadInput

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix: there two processes may make the same entry
    fcntl = None  # type: ignore[assignment]

# One more whenever the form of an entry changes, so that older ones are made anew.
_FORM = 1

Array = npt.NDArray[Any]
# What an array depends on, or what is told about it: anything that JSON can hold.
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """Whole and readable arrays, and what was told about them when they were made."""

    folder: Path
    meta: Facts

    @property
    def info(self) -> Facts:
        """What the writer returned."""
        info: Facts = self.meta["info"]
        return info

    def __contains__(self, name: str) -> bool:
        return name in self.meta["arrays"]

    def array(self, name: str) -> Array:
        """An array, mapped: it costs no memory until it is read, and is shared by processes."""
        mapped: Array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return mapped

    def sha256(self, name: str) -> str:
        """The fingerprint of an array's bytes, known without reading them."""
        return str(self.meta["arrays"][name]["sha256"])


class Draft:
    """An entry in the making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, dict[str, Any]] = {}

    def write(self, name: str, chunks: Iterable[Array]) -> None:
        """One array from pieces of it, in order, of one type and one shape but for their length."""
        size, sha256 = write_npy(self.folder / f"{name}.npy", chunks)
        self.arrays[name] = {"bytes": size, "sha256": sha256}


# Writes the arrays of an entry and returns what is to be told about them. Problems with what it
# reads it raises as BadInput: an OSError is taken for one of the cache.
Writer = Callable[[Draft], Facts]


def entry(name: str, facts: Facts, write: Writer, progress: Progress | None = None) -> Entry:
    """The arrays that depend on `facts`: those that are kept, or else written now.

    A second process that wants them meanwhile waits for the first one's.
    """
    final = cache_folder() / f"{name}-{_key(facts)}"
    found = _open(final)
    if found is not None:
        return found
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final, name, progress):
            return _open(final) or _make(final, facts, write)
    except OSError as problem:
        raise BadInput(
            f"cannot write to the cache {final.parent}: {problem.strerror or problem}; "
            "make room there, or set FEDRAW_CACHE to another folder"
        ) from None


def cache_folder() -> Path:
    """FEDRAW_CACHE, or else a folder among the user's caches."""
    own = os.environ.get("FEDRAW_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "fedraw"


def _key(facts: Facts) -> str:
    text = json.dumps([_FORM, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _open(folder: Path) -> Entry | None:
    """The entry, if it is there and its files are as long as they were."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        expected = {name: array["bytes"] for name, array in meta["arrays"].items()}
        sizes = {name: (folder / f"{name}.npy").stat().st_size for name in expected}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Entry(folder, meta) if sizes == expected and "info" in meta else None


def _make(final: Path, facts: Facts, write: Writer) -> Entry:
    draft = Draft(final.with_name(f"{final.name}.part"))
    _remove(draft.folder)  # what a killed process left
    _remove(final)  # what is damaged
    try:
        draft.folder.mkdir()
        info = write(draft)
        meta = {"facts": facts, "info": info, "arrays": draft.arrays}
        (draft.folder / "meta.json").write_text(json.dumps(meta, indent=2), encoding="utf-8")
        draft.folder.rename(final)
    finally:
        _remove(draft.folder)
    return Entry(final, json.loads(json.dumps(meta)))


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def _locked(final: Path, name: str, progress: Progress | None) -> Iterator[None]:
    """One writer at a time; the lock goes with its process, however that ends."""
    with final.with_name(f"{final.name}.lock").open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress is not None:
                    progress(f"waiting for another process to prepare {name}", 0, 1)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
