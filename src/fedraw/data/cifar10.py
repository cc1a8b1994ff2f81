"""Reads CIFAR-10: small colour photographs of ten kinds of things, in six batches.

The batches are binary or pickled; a pickle is read without running anything that it asks for.

Krizhevsky: Learning multiple layers of features from tiny images. Technical report, 2009.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.batches import BatchedRelease, Pixels, ReleaseBatch, check_labels
from fedraw.data.releases import CIFAR10
from fedraw.data.root import search_places
from fedraw.errors import BadInput

_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", ".")
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_PIXELS = 3 * 32 * 32
# All that an array in a pickle needs, with NumPy's modules by their old and new names.
_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def find_cifar10(root: Path) -> BatchedRelease:
    """Find the binary or the pickled batches below the data root; images have shape (3, 32, 32)."""
    forms = [(root / folder, end) for folder in _FOLDERS for end in (".bin", "")]
    # Take the most complete form, and the first one of equals.
    folder, end = max(forms, key=lambda form: sum(file.is_file() for file in _files(*form)))
    batches = tuple(_batch(file) for file in _files(folder, end))
    searched = search_places(root, _FOLDERS)
    return BatchedRelease("cifar10", root, CIFAR10.label_names, batches, searched)


def _files(folder: Path, end: str) -> list[Path]:
    return [folder / f"{name}{end}" for name in (*_TRAIN, "test_batch")]


def _batch(file: Path) -> ReleaseBatch:
    part = "test" if file.stem == "test_batch" else "train"
    return ReleaseBatch(part, (file,), _read, join=lambda content: content)


def _read(file: Path) -> tuple[Pixels, Ints]:
    pixels, labels = _read_binary(file) if file.suffix == ".bin" else _read_pickle(file)
    return pixels.reshape(-1, 3, 32, 32), check_labels(file, labels, CIFAR10.labels)


def _read_binary(file: Path) -> tuple[Pixels, Ints]:
    """Read images of one byte of label, then 1,024 bytes each of red, green and blue."""
    try:
        content = np.frombuffer(file.read_bytes(), np.uint8)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
    if not len(content) or len(content) % (1 + _PIXELS):
        raise BadInput(
            f"{file}: has {len(content):,} bytes, which is not a multiple of {1 + _PIXELS:,} (the "
            f"official file has {10_000 * (1 + _PIXELS):,}); download it again"
        )
    rows = content.reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _read_pickle(file: Path) -> tuple[Pixels, Ints]:
    """Read the arrays `data` and `labels` of a pickled batch."""
    batch = _load(file)
    data = np.asarray(batch.get(b"data", batch.get("data")))
    labels = np.asarray(batch.get(b"labels", batch.get("labels")))
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS or not len(data):
        raise BadInput(
            f"{file}: its data are {data.dtype} of shape {data.shape}, not uint8 of "
            f"(n, {_PIXELS}); download it again"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(data),):
        raise BadInput(
            f"{file}: has {len(data):,} images, but labels of shape {labels.shape} and type "
            f"{labels.dtype}; download it again"
        )
    return data, labels.astype(np.int64)


def _load(file: Path) -> dict[Any, Any]:
    try:
        with file.open("rb") as content:
            batch = _ArraysOnly(content, file).load()
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
    except Exception as error:  # a damaged pickle may raise anything
        size = file.stat().st_size
        raise BadInput(
            f"{file}: is not a complete pickle; it has {size:,} bytes, and the official one has "
            f"about 31,000,000 ({error}); download it again"
        ) from None
    if not isinstance(batch, dict):
        raise BadInput(f"{file}: contains a {type(batch).__name__}, not a batch; download it again")
    return batch


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays and refuses everything else."""

    def __init__(self, content: BinaryIO, file: Path) -> None:
        super().__init__(content, encoding="bytes")
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return _as_bytes
        raise BadInput(
            f"{self._file}: asks to run {module}.{name}, which no batch of images needs, and was "
            "not read; delete the file and download it again"
        )


def _as_bytes(text: str, _encoding: str = "latin1") -> bytes:
    """Decode a byte string as Python 3 writes it into old pickles."""
    return text.encode("latin1")
