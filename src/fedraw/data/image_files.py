"""Reads releases that store their images in a few large files: EMNIST Balanced and CIFAR-10.

EMNIST Balanced has 47 letters and digits in idx files, the format of the MNIST family.
Cohen, Afshar, Tapson, van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN 2017.

CIFAR-10 has small colour photographs of ten kinds of things in six binary batches.
Krizhevsky: Learning multiple layers of features from tiny images. Technical report, 2009.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.data.readers import PART, Content, Copy, find_copy, read_bytes
from fedraw.data.releases import RELEASES, Release
from fedraw.errors import BadInput

EMNIST = RELEASES["emnist"]
CIFAR10 = RELEASES["cifar10"]

Pixels = npt.NDArray[np.uint8]

# The first three bytes of an idx file of unsigned bytes; the fourth byte is the number of axes.
_UNSIGNED_BYTES = b"\x00\x00\x08"
_IMAGES, _LABELS = "images-idx3", "labels-idx1"
# Folders in which torchvision and the archive itself put the files, relative to the data root.
_EMNIST_FOLDERS = (
    "EMNIST/raw", "EMNIST/raw/gzip", "EMNIST/gzip", "EMNIST", "raw", "raw/gzip", "gzip", ".",
)  # fmt: skip
_CIFAR10_FOLDERS = ("cifar-10-batches-bin", ".")
_CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_PICKLED = "cifar-10-batches-py"
_PIXELS = 3 * 32 * 32


def find_emnist(root: Path) -> Copy:
    """Find the four files, gzipped or not, below the data root; images have shape (1, 28, 28)."""
    wanted = {
        f"emnist-balanced-{part}-{kind}-ubyte*": 1
        for part in ("train", "test")
        for kind in (_IMAGES, _LABELS)
    }
    return find_copy(EMNIST, root, _EMNIST_FOLDERS, wanted, read_emnist, units=f"*{_IMAGES}*")


def read_emnist(images_file: Path) -> Content:
    """Read a file of images, and the file of their labels beside it."""
    name = images_file.name.removesuffix(".gz").replace(_IMAGES, _LABELS)
    labels_file = next(images_file.parent.glob(f"{name}*"), images_file.with_name(name))
    arrays, problems = [], []
    for file, axes in ((images_file, 3), (labels_file, 1)):
        try:
            arrays.append(read_idx(file, axes))
        except BadInput as problem:
            problems.append(str(problem))
    if problems:
        raise BadInput("\n".join(problems))
    images, labels = arrays
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
    # The release stores each image transposed.
    return _samples(labels_file, EMNIST, images.transpose(0, 2, 1)[:, None], labels)


def read_idx(path: Path, axes: int) -> Pixels:
    """Read an array of unsigned bytes with `axes` axes from an idx file, gzipped or not."""
    content = read_bytes(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(
                f"{path}: is not a complete gzip file ({error}); download it again"
            ) from None
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


def find_cifar10(root: Path) -> Copy:
    """Find the binary batches below the data root; images have shape (3, 32, 32)."""
    wanted = dict.fromkeys(_CIFAR10_FILES, 1)
    copy = find_copy(CIFAR10, root, _CIFAR10_FOLDERS, wanted, read_cifar10)
    if not copy.files and (root / _PICKLED).is_dir():
        raise BadInput(
            f"{root / _PICKLED} has pickled batches, which fedraw read up to version 0.2; get "
            "the binary ones with 'fedraw data fetch cifar10'"
        )
    return copy


def read_cifar10(file: Path) -> Content:
    """Read a binary batch: for each image the label, then 1,024 red, green and blue bytes each."""
    content = np.frombuffer(read_bytes(file), np.uint8)
    if not len(content) or len(content) % (1 + _PIXELS):
        raise BadInput(
            f"{file}: has {len(content):,} bytes, which is not a multiple of {1 + _PIXELS:,} (the "
            f"official file has {10_000 * (1 + _PIXELS):,}); download it again"
        )
    rows = content.reshape(-1, 1 + _PIXELS)
    return _samples(file, CIFAR10, rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def _samples(file: Path, release: Release, images: Pixels, labels: Pixels) -> Content:
    """Return the samples of a file in the part that its name says; refuse unknown labels."""
    numbers: Ints = labels.astype(np.int64)
    outside = numbers >= release.labels
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{file}: image {row} has label {numbers[row]}, but labels go from 0 to "
            f"{release.labels - 1}; download it again"
        )
    part = "test" if "test" in file.name else "train"
    return Content(images, numbers, {PART: np.full(len(images), part)})
