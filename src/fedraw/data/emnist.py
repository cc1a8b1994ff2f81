"""Reads EMNIST Balanced: 47 letters and digits in idx files, the format of the MNIST family.

Cohen, Afshar, Tapson, van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN 2017.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.batches import BatchedRelease, Pixels, ReleaseBatch, check_labels
from fedraw.data.releases import EMNIST
from fedraw.data.root import search_places
from fedraw.errors import BadInput

# An idx file of unsigned bytes begins with these; the fourth byte is the number of axes.
_UNSIGNED_BYTES = b"\x00\x00\x08"
# Folders in which torchvision and the archive itself put the files, relative to the data root.
_FOLDERS = (
    "EMNIST/raw", "EMNIST/raw/gzip", "EMNIST/gzip", "EMNIST", "raw", "raw/gzip", "gzip", ".",
)  # fmt: skip


def find_emnist(root: Path) -> BatchedRelease:
    """Find the four files, gzipped or not, below the data root; images have shape (1, 28, 28)."""
    batches = tuple(_batch(root, part) for part in ("train", "test"))
    searched = search_places(root, _FOLDERS)
    return BatchedRelease("emnist", root, EMNIST.label_names, batches, searched)


def read_idx(path: Path, axes: int) -> Pixels:
    """Read an array of unsigned bytes with `axes` axes from an idx file, gzipped or not."""
    content = _content(path)
    if len(content) < 4 + 4 * axes or content[:4] != _UNSIGNED_BYTES + bytes([axes]):
        raise BadInput(
            f"{path}: begins with {content[:4].hex(' ') or 'nothing'}, but an idx file of bytes "
            f"with {axes} axes begins with 00 00 08 {axes:02x}; download it again"
        )
    shape = struct.unpack_from(f">{axes}I", content, 4)
    expected = 4 + 4 * axes + math.prod(shape)
    if len(content) != expected:
        raise BadInput(
            f"{path}: has {len(content):,} bytes, but its header promises {expected:,} "
            f"({' x '.join(str(n) for n in shape)}); download it again"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _batch(root: Path, part: str) -> ReleaseBatch:
    kinds = ("images-idx3", "labels-idx1")
    images, labels = (_locate(root, f"emnist-balanced-{part}-{kind}-ubyte") for kind in kinds)
    return ReleaseBatch(part, (images, labels), _read, partial(_upright, images, labels))


def _locate(root: Path, name: str) -> Path:
    """Return the path of the file, or where it would be."""
    found = (root / folder / f"{name}{end}" for folder in _FOLDERS for end in ("", ".gz"))
    return next((path for path in found if path.is_file()), root / _FOLDERS[0] / f"{name}.gz")


def _read(path: Path) -> Pixels:
    return read_idx(path, axes=3 if "idx3" in path.name else 1)


def _upright(
    images_file: Path, labels_file: Path, images: Pixels, labels: Pixels
) -> tuple[Pixels, Ints]:
    if images.shape[1:] != (28, 28) or not len(images):
        raise BadInput(
            f"{images_file}: has {' x '.join(str(n) for n in images.shape)} pixels, not "
            "n x 28 x 28; download it again"
        )
    if len(images) != len(labels):
        raise BadInput(
            f"{images_file}: has {len(images):,} images, but {labels_file.name} has "
            f"{len(labels):,} labels; download both again"
        )
    numbers = check_labels(labels_file, labels.astype(np.int64), EMNIST.labels)
    # In the release, rows and columns are exchanged.
    return images.transpose(0, 2, 1)[:, None], numbers


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; make the file readable") from None
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: is not a whole gzip file ({error}); download it again") from None
