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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Facts, fingerprint, stamps
from fedraw.data.dataset import count_labels
from fedraw.data.releases import (
    CIFAR10,
    EMNIST,
    CheckReport,
    Progress,
    count_notes,
    search_places,
)
from fedraw.errors import BadInput

# Increased whenever the same files are read differently, so that cached arrays are written again.
_READER_VERSION = 1
PARTS = ("train", "test")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ReleaseBatch:
    """Images with their labels, in one file or in two files that belong together.

    `read_file` reads one of the files, and `join` turns their contents into images and labels.
    """

    part: str
    files: tuple[Path, ...]
    read_file: Callable[[Path], Any]
    join: Callable[..., tuple[Pixels, Ints]]

    def read(self) -> tuple[Pixels, Ints]:
        """Read the images and labels."""
        return self.join(*(self.read_file(file) for file in self.files))


@dataclass(frozen=True)
class BatchedRelease:
    """The batches of a release; `searched` lists the folders that were searched for them."""

    name: str
    root: Path
    label_names: tuple[str, ...]
    batches: tuple[ReleaseBatch, ...]
    searched: str

    @property
    def files(self) -> list[Path]:
        """All files of the release, whether or not they exist."""
        return [file for batch in self.batches for file in batch.files]

    def facts(self) -> Facts:
        """Return all that the decoded images depend on; raise BadInput if a file is missing."""
        self._refuse_missing(at_most=0)
        return {"reader": _READER_VERSION, "files": fingerprint(stamps(self.files, self.root))}

    def write(self, draft: Draft, progress: Progress | None) -> Facts:
        """Write the arrays `images`, `labels` and `part` (an index into PARTS) to the cache."""
        labels: list[Ints] = []
        parts: list[Ints] = []

        def images() -> Iterator[Pixels]:
            for batch, pixels, numbers in self._read("decoding", progress):
                labels.append(numbers)
                parts.append(np.full(len(numbers), PARTS.index(batch.part)))
                yield pixels

        draft.write("images", images())
        draft.write("labels", labels)
        draft.write("part", parts)
        found, part = np.concatenate(labels), np.concatenate(parts)
        counts = {p: count_labels(found[part == i], self.label_names) for i, p in enumerate(PARTS)}
        return {"label_names": self.label_names, "notes": count_notes(self.name, counts)}

    def check(self, progress: Progress | None) -> CheckReport:
        """Read every file, and continue after a damaged one."""
        self._refuse_missing(at_most=len(self.files) - 1)
        damaged: list[str] = []
        counts = {part: dict.fromkeys(self.label_names, 0) for part in PARTS}
        for batch, _, numbers in self._read("checking", progress, damaged):
            for label, n in count_labels(numbers, self.label_names).items():
                counts[batch.part][label] += n
        return CheckReport(self.name, counts, count_notes(self.name, counts), tuple(damaged))

    def _read(
        self, activity: str, progress: Progress | None, damaged: list[str] | None = None
    ) -> Iterator[tuple[ReleaseBatch, Pixels, Ints]]:
        """Yield every batch; with `damaged`, append errors to it instead of raising them."""
        for done, batch in enumerate(self.batches, start=1):
            try:
                yield (batch, *batch.read())
            except BadInput as problem:
                if damaged is None:
                    raise
                damaged += _file_errors(batch) or [str(problem)]
            if progress is not None:
                progress(f"{activity} {self.name}", done, len(self.batches))

    def _refuse_missing(self, at_most: int) -> None:
        missing = [file for file in self.files if not file.is_file()]
        if len(missing) > at_most:
            raise BadInput(
                f"dataset {self.name!r} lacks {several([file.name for file in missing], 6)} in "
                f"{self.searched}; get it with 'fedraw data fetch {self.name}', or give another "
                "data root with data_root=..."
            )


def _file_errors(batch: ReleaseBatch) -> list[str]:
    """Return the error of each file of a batch that cannot be read alone."""
    errors = []
    for file in batch.files:
        try:
            batch.read_file(file)
        except BadInput as problem:
            errors.append(str(problem))
    return errors


def check_labels(file: Path, labels: Ints, classes: int) -> Ints:
    """Return the labels, or raise BadInput if one of them is not a class."""
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{file}: image {row} has label {labels[row]}, but labels go from 0 to {classes - 1}; "
            "download it again"
        )
    return labels


# The first three bytes of an idx file of unsigned bytes; the fourth byte is the number of axes.
_UNSIGNED_BYTES = b"\x00\x00\x08"
# Folders in which torchvision and the archive itself put the files, relative to the data root.
_EMNIST_FOLDERS = (
    "EMNIST/raw", "EMNIST/raw/gzip", "EMNIST/gzip", "EMNIST", "raw", "raw/gzip", "gzip", ".",
)  # fmt: skip


def find_emnist(root: Path) -> BatchedRelease:
    """Find the four files, gzipped or not, below the data root; images have shape (1, 28, 28)."""
    batches = tuple(_emnist_batch(root, part) for part in ("train", "test"))
    searched = search_places(root, _EMNIST_FOLDERS)
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


def _emnist_batch(root: Path, part: str) -> ReleaseBatch:
    kinds = ("images-idx3", "labels-idx1")
    images, labels = (_locate(root, f"emnist-balanced-{part}-{kind}-ubyte") for kind in kinds)
    return ReleaseBatch(part, (images, labels), _read_emnist, partial(_join_emnist, images, labels))


def _locate(root: Path, name: str) -> Path:
    """Return the path of the file, or its default path if it does not exist."""
    found = (root / folder / f"{name}{end}" for folder in _EMNIST_FOLDERS for end in ("", ".gz"))
    return next(
        (path for path in found if path.is_file()), root / _EMNIST_FOLDERS[0] / f"{name}.gz"
    )


def _read_emnist(path: Path) -> Pixels:
    return read_idx(path, axes=3 if "idx3" in path.name else 1)


def _join_emnist(
    images_file: Path, labels_file: Path, images: Pixels, labels: Pixels
) -> tuple[Pixels, Ints]:
    """Check the arrays of both files, and turn the images upright."""
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
    # The release stores each image transposed.
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
        raise BadInput(
            f"{path}: is not a complete gzip file ({error}); download it again"
        ) from None


_CIFAR10_FOLDERS = ("cifar-10-batches-bin", ".")
_PICKLED = "cifar-10-batches-py"
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_PIXELS = 3 * 32 * 32


def find_cifar10(root: Path) -> BatchedRelease:
    """Find the binary batches below the data root; images have shape (3, 32, 32)."""
    places = [_cifar10_files(root / folder) for folder in _CIFAR10_FOLDERS]
    # Choose the most complete folder; on a tie, the first one.
    files = max(places, key=lambda own: sum(file.is_file() for file in own))
    if not any(file.is_file() for file in files) and (root / _PICKLED).is_dir():
        raise BadInput(
            f"{root / _PICKLED} has pickled batches, which fedraw read up to version 0.2; get "
            f"the binary ones with 'fedraw data fetch cifar10'"
        )
    batches = tuple(_cifar10_batch(file) for file in files)
    searched = search_places(root, _CIFAR10_FOLDERS)
    return BatchedRelease("cifar10", root, CIFAR10.label_names, batches, searched)


def _cifar10_files(folder: Path) -> list[Path]:
    return [folder / f"{name}.bin" for name in (*_TRAIN, "test_batch")]


def _cifar10_batch(file: Path) -> ReleaseBatch:
    part = "test" if file.stem == "test_batch" else "train"
    return ReleaseBatch(part, (file,), _read_cifar10, join=lambda content: content)


def _read_cifar10(file: Path) -> tuple[Pixels, Ints]:
    pixels, labels = _read_binary(file)
    return pixels.reshape(-1, 3, 32, 32), check_labels(file, labels, CIFAR10.labels)


def _read_binary(file: Path) -> tuple[Pixels, Ints]:
    """Read a binary batch: for each image the label, then 1,024 red, green and blue bytes each."""
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
