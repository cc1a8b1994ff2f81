"""CIFAR-10: small colour photographs of ten things, in six batches.

Krizhevsky: Learning multiple layers of features from tiny images. Technical report, 2009.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.batches import Batch, Batches, Pixels, check_labels
from fedraw.data.cifar10_pickle import read_pickle
from fedraw.data.histograms import CIFAR10
from fedraw.data.root import places
from fedraw.errors import BadInput

_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", ".")
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_PIXELS = 3 * 32 * 32


def find_cifar10(root: Path) -> Batches:
    """The binary batches or the pickled ones; images of shape (3, 32, 32)."""
    forms = [(root / folder, end) for folder in _FOLDERS for end in (".bin", "")]
    # The most complete one; the first of equals.
    folder, end = max(forms, key=lambda form: sum(file.is_file() for file in _files(*form)))
    batches = tuple(_batch(file) for file in _files(folder, end))
    return Batches("cifar10", root, tuple(CIFAR10), batches, places(root, _FOLDERS))


def _files(folder: Path, end: str) -> list[Path]:
    return [folder / f"{name}{end}" for name in (*_TRAIN, "test_batch")]


def _batch(file: Path) -> Batch:
    part = "test" if file.stem == "test_batch" else "train"
    return Batch(part, (file,), _read, join=lambda content: content)


def _read(file: Path) -> tuple[Pixels, Ints]:
    pixels, labels = _read_binary(file) if file.suffix == ".bin" else read_pickle(file, _PIXELS)
    return pixels.reshape(-1, 3, 32, 32), check_labels(file, labels, len(CIFAR10))


def _read_binary(file: Path) -> tuple[Pixels, Ints]:
    """Each image is a byte of label, then 1,024 of red, of green, of blue."""
    try:
        content = np.frombuffer(file.read_bytes(), np.uint8)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
    if not len(content) or len(content) % (1 + _PIXELS):
        raise BadInput(
            f"{file}: has {len(content):,} bytes, which is no multiple of {1 + _PIXELS:,} (the "
            f"official file has {10_000 * (1 + _PIXELS):,}); download it again"
        )
    rows = content.reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)
