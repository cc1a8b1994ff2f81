"""A cache of arrays that are expensive to compute, kept in files and read through memory maps.

An entry is a folder `<name>-<key>` of .npy files and meta.json. Its key is a hash of everything
that the arrays depend on. The folder is written as `<entry>.part` and renamed when it is complete,
so a process that dies never leaves an entry that looks complete.
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
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from fedraw.data.releases import Progress
from fedraw.errors import BadInput
from fedraw.storage.files import PARTIAL
from fedraw.storage.lock import acquire

# Increased whenever the format of an entry changes, so that older entries are written again.
_FORMAT = 1

Array = npt.NDArray[Any]
# Everything that arrays depend on, or a description of them: values that JSON can represent.
Facts = Mapping[str, Any]
# The version of a source file: its name, size in bytes and modification time.
Stamp = tuple[str, int, int]


@dataclass(frozen=True)
class Entry:
    """A complete entry: its arrays, and the description that was stored with them."""

    folder: Path
    meta: Facts

    @property
    def info(self) -> Facts:
        """The description that the writer of the entry returned."""
        info: Facts = self.meta["info"]
        return info

    def array(self, name: str) -> Array:
        """Map an array into memory: it is read on access and shared between processes."""
        mapped: Array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return mapped

    def sha256(self, name: str) -> str:
        """Return the stored fingerprint of an array's bytes, without reading them."""
        return str(self.meta["arrays"][name]["sha256"])


class Draft:
    """An entry that is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, dict[str, Any]] = {}

    def write(self, name: str, chunks: Iterable[Array]) -> None:
        """Write one array from consecutive chunks, which may differ in length only."""
        size, sha256 = write_npy(self.folder / f"{name}.npy", chunks)
        self.arrays[name] = {"bytes": size, "sha256": sha256}


# Writes the arrays of an entry and returns their description. It raises BadInput for problems with
# its source files, because an OSError is attributed to the cache.
Writer = Callable[[Draft], Facts]


def entry(name: str, facts: Facts, write: Writer, progress: Progress | None = None) -> Entry:
    """Return the cached entry for `facts`, or write it now with `write`.

    A second process that needs the same entry waits until the first one has written it.
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
            "free some space there, or set FEDRAW_CACHE to another folder"
        ) from None


def write_npy(path: Path, chunks: Iterable[Array]) -> tuple[int, str]:
    """Write consecutive chunks as one .npy file; return its size and the sha256 of the array.

    A writable memory map would be shorter, but on a full disk it kills the process.
    """
    digest, rows, kind = hashlib.sha256(), 0, None
    with path.open("wb") as file:

        def write_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
            file.seek(0)
            facts = {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            write_array_header_1_0(file, facts)

        for chunk in chunks:
            if kind is None:
                kind = chunk.shape[1:], chunk.dtype
                write_header((0, *kind[0]), kind[1])
            elif (chunk.shape[1:], chunk.dtype) != kind:
                shape, dtype = kind
                raise ValueError(f"{path.name}: {chunk.shape} {chunk.dtype} after {shape} {dtype}")
            content = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
            file.write(content)
            digest.update(content)
            rows += len(chunk)
        if kind is None:
            raise ValueError(f"{path.name}: there is no chunk to write")
        # NumPy reserves space for the length of the first axis, so the header does not grow.
        write_header((rows, *kind[0]), kind[1])
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size, digest.hexdigest()


def stamps(files: Iterable[Path], base: Path) -> list[Stamp]:
    """Return the stamp of each file, with its name relative to `base`."""
    found = []
    for file in files:
        try:
            state = file.stat()
        except OSError as error:
            raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
        found.append((file.relative_to(base).as_posix(), state.st_size, state.st_mtime_ns))
    return found


def fingerprint(files: Iterable[Stamp]) -> str:
    """Return a hash that changes when any of the files changes."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def cache_folder() -> Path:
    """Return FEDRAW_CACHE, or else the folder `fedraw` in the user's cache folder."""
    configured = os.environ.get("FEDRAW_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "fedraw"


def _key(facts: Facts) -> str:
    text = json.dumps([_FORMAT, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _open(folder: Path) -> Entry | None:
    """Return the entry if it exists and its files have their original size."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        expected = {name: array["bytes"] for name, array in meta["arrays"].items()}
        sizes = {name: (folder / f"{name}.npy").stat().st_size for name in expected}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Entry(folder, meta) if sizes == expected and "info" in meta else None


def _make(final: Path, facts: Facts, write: Writer) -> Entry:
    draft = Draft(final.with_name(f"{final.name}{PARTIAL}"))
    _remove(draft.folder)  # a killed process may have left one
    _remove(final)  # if the entry exists, it is damaged
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
    """Allow one writer at a time; the system releases the lock when its process ends."""
    with final.with_name(f"{final.name}.lock").open("ab") as file:
        if not acquire(file):
            if progress is not None:
                progress(f"waiting for another process to prepare {name}", 0, 1)
            acquire(file, wait=True)
        yield
