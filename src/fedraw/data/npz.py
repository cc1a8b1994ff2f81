"""A user's own dataset in one .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedraw.data.dataset import Dataset, from_arrays
from fedraw.errors import BadInput, nearest

_NEEDED = ("images", "labels")
_KNOWN = (*_NEEDED, "test_images", "test_labels", "label_names")
_UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, MemoryError)


def load_npz(path: Path, rng: np.random.Generator) -> Dataset:
    """Read `images` and `labels`, and if present `test_images`, `test_labels`, `label_names`.

    The arrays may be anything that `from_arrays` takes; nothing in the file is ever executed.
    """
    arrays = _read(Path(path))
    names = arrays.get("label_names")
    try:
        return from_arrays(
            arrays["images"],
            arrays["labels"],
            name=Path(path).stem,
            test_images=arrays.get("test_images"),
            test_labels=arrays.get("test_labels"),
            label_names=None if names is None else names.astype(str).ravel().tolist(),
            rng=rng,
        )
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Opened here, because numpy.load leaves a broken archive open.
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; give the path of an .npz file") from error
    with file:
        archive = _archive(path, file)
        _check_keys(path, archive.files)
        return {key: _array(path, archive, key) for key in archive.files}


def _archive(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except _UNREADABLE:
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise BadInput(
            f"{path}: not an .npz file; write it with numpy.savez(path, images=, labels=)"
        )
    return archive


def _check_keys(path: Path, keys: list[str]) -> None:
    for key in keys:
        if key not in _KNOWN:
            raise BadInput(f"{path}: unknown key {key!r}; {nearest(key, _KNOWN)}")
    for key in _NEEDED:
        if key not in keys:
            found = ", ".join(keys) or "no key at all"
            raise BadInput(f"{path}: key {key!r} is missing (found {found}); add it")


def _array(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = archive[key]
    except _UNREADABLE as error:
        raise BadInput(
            f"{path}: key {key!r} cannot be read ({error}); save plain arrays of numbers or text, "
            "not objects"
        ) from error
    return array
