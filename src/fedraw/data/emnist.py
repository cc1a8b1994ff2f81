"""EMNIST Balanced: 47 letters and digits in idx files.

Cohen, Afshar, Tapson, van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN 2017.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.batches import Batch, Batches, Pixels, check_labels
from fedraw.data.idx import read_idx
from fedraw.data.official import EMNIST
from fedraw.data.root import places
from fedraw.errors import BadInput

# Where torchvision and the archive itself put the files, below the data root or in it.
_FOLDERS = (
    "EMNIST/raw", "EMNIST/raw/gzip", "EMNIST/gzip", "EMNIST", "raw", "raw/gzip", "gzip", ".",
)  # fmt: skip


def find_emnist(root: Path) -> Batches:
    """The four files, packed with gzip or not; images of shape (1, 28, 28)."""
    batches = tuple(_batch(root, part) for part in ("train", "test"))
    return Batches("emnist", root, EMNIST, batches, places(root, _FOLDERS))


def _batch(root: Path, part: str) -> Batch:
    kinds = ("images-idx3", "labels-idx1")
    images, labels = (_locate(root, f"emnist-balanced-{part}-{kind}-ubyte") for kind in kinds)
    return Batch(part, (images, labels), _read, partial(_upright, images, labels))


def _locate(root: Path, name: str) -> Path:
    """Where the file is, or where it would be."""
    found = (root / folder / f"{name}{end}" for folder in _FOLDERS for end in ("", ".gz"))
    return next((path for path in found if path.is_file()), root / _FOLDERS[0] / f"{name}.gz")


def _read(path: Path) -> Pixels:
    return read_idx(path, axes=3 if "idx3" in path.name else 1)


def _upright(
    images_file: Path, labels_file: Path, images: Pixels, labels: Pixels
) -> tuple[Pixels, Ints]:
    if images.shape[1:] != (28, 28) or not len(images):
        raise BadInput(
            f"{images_file}: holds {' x '.join(str(n) for n in images.shape)} pixels, not "
            "n x 28 x 28; download it again"
        )
    if len(images) != len(labels):
        raise BadInput(
            f"{images_file}: {len(images):,} images, and {labels_file.name} has {len(labels):,} "
            "labels; download both again"
        )
    numbers = check_labels(labels_file, labels.astype(np.int64), len(EMNIST))
    # The release has rows and columns exchanged.
    return images.transpose(0, 2, 1)[:, None], numbers
