"""CIFAR-10's pickled batches, read without running anything that a pickle may ask for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.errors import BadInput

# All that an array in a pickle needs; NumPy's modules by their old and new names.
_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def read_pickle(file: Path, pixels: int) -> tuple[npt.NDArray[np.uint8], Ints]:
    """`data` and `labels` of a batch, in rows of so many pixels."""
    batch = _load(file)
    data = np.asarray(batch.get(b"data", batch.get("data")))
    labels = np.asarray(batch.get(b"labels", batch.get("labels")))
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != pixels or not len(data):
        raise BadInput(
            f"{file}: its data are {data.dtype} of shape {data.shape}, not uint8 of "
            f"(n, {pixels}); download it again"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(data),):
        raise BadInput(
            f"{file}: {len(data):,} images, and labels of shape {labels.shape} and type "
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
    except Exception as error:  # a damaged pickle fails in any way there is
        size = file.stat().st_size
        raise BadInput(
            f"{file}: is no whole pickle of {size:,} bytes, and the official one has about "
            f"31,000,000 ({error}); download it again"
        ) from None
    if not isinstance(batch, dict):
        raise BadInput(f"{file}: holds a {type(batch).__name__}, not a batch; download it again")
    return batch


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, content: BinaryIO, file: Path) -> None:
        super().__init__(content, encoding="bytes")
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return _as_bytes
        raise BadInput(
            f"{self._file}: wants to use {module}.{name}, which no batch of images needs, and was "
            "not allowed to; delete the file and download it again"
        )


def _as_bytes(text: str, _encoding: str = "latin1") -> bytes:
    """How Python 3 writes byte strings into old pickles."""
    return text.encode("latin1")
