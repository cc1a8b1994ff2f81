"""Labelled images with a global test set, and the images themselves, in memory or in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.errors import BadInput, nearest

# uint8 (0 to 255, converted to 0..1 when a network reads them) or float32.
Pixels = npt.NDArray[Any]
_CHUNK = 1024


class Images:
    """Rows of an array of shape (n, ...), read when they are needed.

    A selection copies nothing. Images of a memory-mapped file are shared by all processes that
    read them: pickling sends only the name of the file.

    >>> images = Images(np.arange(8, dtype=np.uint8).reshape(4, 2)).select([3, 1])
    >>> len(images), images.shape, images[:1].tolist(), images.select([1]).take([0]).tolist()
    (2, (2, 2), [[6, 7]], [[2, 3]])
    """

    def __init__(
        self, pixels: Pixels, rows: npt.ArrayLike | None = None, sha256: str | None = None
    ) -> None:
        """Select `rows` of `pixels` (default: all).

        `sha256` is the known fingerprint of the whole array, which saves reading all of it.
        """
        if not pixels.ndim:
            raise BadInput(
                "images have shape (), a single number; give (n, ...), one row per image"
            )
        self.pixels = pixels
        self.rows: Ints | None = None if rows is None else np.asarray(rows, np.int64)
        self._sha256 = sha256

    @classmethod
    def open(cls, path: Path, rows: Ints | None = None, sha256: str | None = None) -> Images:
        """Map the images of an .npy file into memory."""
        return cls(np.load(path, mmap_mode="r"), rows, sha256)

    def __len__(self) -> int:
        return len(self.pixels) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected images, with their number first."""
        return (len(self), *self.pixels.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the pixels: uint8 or float32."""
        return self.pixels.dtype

    @property
    def in_a_file(self) -> bool:
        """Whether the pixels are in a memory-mapped file."""
        return isinstance(self.pixels, np.memmap)

    def select(self, rows: npt.ArrayLike) -> Images:
        """Select rows of this selection, without copying."""
        wanted = np.asarray(rows, np.int64)
        chosen = wanted if self.rows is None else self.rows[wanted]
        return Images(self.pixels, chosen, self._sha256)

    def everything(self) -> Images:
        """Return all rows of the array from which these images are selected."""
        return Images(self.pixels, sha256=self._sha256)

    def mapped_to(self, others: Images) -> Images:
        """Select the same rows of another array, such as features of the same samples."""
        return others if self.rows is None else others.select(self.rows)

    def take(self, positions: npt.ArrayLike) -> Pixels:
        """Read the images at these positions of the selection."""
        return self.select(positions)[:]

    def __getitem__(self, part: slice) -> Pixels:
        found = self.pixels[part if self.rows is None else self.rows[part]]
        return np.asarray(found)  # a plain array, even if the file is memory-mapped

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Pixels:
        return np.array(self[:], dtype=dtype, copy=copy)

    def sha256(self) -> str:
        """Return a fingerprint of the selected images, which does not depend on their file."""
        digest = hashlib.sha256(f"{self.shape}{self.dtype}".encode())
        if self._sha256 is not None:
            digest.update(self._sha256.encode())
            digest.update(b"" if self.rows is None else self.rows.tobytes())
        elif self.pixels.size:
            for start in range(0, len(self), _CHUNK):
                digest.update(np.ascontiguousarray(self[start : start + _CHUNK]).data.cast("B"))
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Callable[..., Images], tuple[Any, ...]]:
        if isinstance(self.pixels, np.memmap):
            return Images.open, (self.pixels.filename, self.rows, self._sha256)
        return Images, (self.pixels, self.rows, self._sha256)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to distribute over clients, and a test set that belongs to none of them.

    Everything is checked on construction. `fedraw.from_arrays` makes one from your own arrays.
    `notes` are remarks that every result on this dataset repeats, such as a difference from the
    official release.

    >>> two = Images(np.zeros((2, 1, 8, 8), dtype=np.float32))
    >>> test = two.select([0])
    >>> data = Dataset("toy", two, np.array([0, 1]), test, np.array([1]), ("cat", "dog"))
    >>> data.classes, data.input_shape, data.label_indices(["dog", 0])
    (2, (1, 8, 8), (1, 0))
    """

    name: str
    images: Images
    labels: Ints
    test_images: Images
    test_labels: Ints
    label_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.label_names)) < len(self.label_names):
            twice = next(n for n in self.label_names if self.label_names.count(n) > 1)
            raise BadInput(f"label_names lists {twice!r} twice; make the names unique")
        if not len(self.images):
            raise BadInput(f"dataset {self.name!r} has no images; give at least one to train on")
        check_samples("", self.images, self.labels, self.classes)
        check_samples("test_", self.test_images, self.test_labels, self.classes)
        if self.test_images.shape[1:] != self.input_shape:
            raise BadInput(
                f"test_images have shape {self.test_images.shape[1:]} and images have shape "
                f"{self.input_shape}; give both the same shape"
            )

    @property
    def classes(self) -> int:
        """Number of labels, whether or not all of them have samples."""
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.images.shape[1:]

    @property
    def has_images(self) -> bool:
        """False for a dataset of labels only, which is enough for a run without training."""
        return 0 not in self.input_shape

    def label_indices(self, names_or_numbers: Sequence[int | str]) -> tuple[int, ...]:
        """Return the numbers of labels that are given by name or by number."""
        return tuple(self._label_index(label) for label in names_or_numbers)

    def sha256(self) -> str:
        """Return a fingerprint of all images and labels, equal for runs on the same data."""
        digest = hashlib.sha256()
        for images, labels in (
            (self.images, self.labels),
            (self.test_images, self.test_labels),
        ):
            digest.update(images.sha256().encode())
            digest.update(np.ascontiguousarray(labels).tobytes())
        return digest.hexdigest()

    def _label_index(self, label: int | str) -> int:
        if isinstance(label, str) and label in self.label_names:
            return self.label_names.index(label)
        if isinstance(label, str):
            raise BadInput(
                f"dataset {self.name!r} has no label {label!r}; {nearest(label, self.label_names)}"
            )
        if not 0 <= label < self.classes:
            raise BadInput(
                f"dataset {self.name!r} has no label number {label}; its labels are 0 to "
                f"{self.classes - 1}"
            )
        return int(label)


def count_labels(labels: Ints, names: Sequence[str]) -> dict[str, int]:
    """Count the samples of each label.

    >>> count_labels(np.array([1, 1]), ["cat", "dog"])
    {'cat': 0, 'dog': 2}
    """
    counts = np.bincount(labels, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def check_samples(kind: str, images: Images, labels: Ints, classes: int) -> None:
    """Raise BadInput if images and labels do not fit; `kind` is "" or "test_"."""
    if images.dtype not in (np.float32, np.uint8) or labels.dtype != np.int64:
        raise BadInput(
            f"{kind}images are {images.dtype} and {kind}labels are {labels.dtype}, not float32 (or "
            "uint8) and int64; fedraw.from_arrays converts them"
        )
    if len(images.shape) < 2 or labels.shape != images.shape[:1]:
        raise BadInput(
            f"{kind}images have shape {images.shape} and {kind}labels {labels.shape}; "
            "they need (n, ...) and (n,), one label for each image"
        )
    _check_finite(kind, images)
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{kind}labels[{row}] = {labels[row]} is outside 0 to {classes - 1}, the numbers of "
            f"{classes} label names; number labels from 0 without gaps, or give names as labels"
        )


def _check_finite(kind: str, images: Images) -> None:
    if images.dtype != np.float32 or not len(images):
        return
    pixels = images[:]
    finite = np.isfinite(pixels.reshape(len(pixels), -1)).all(axis=1)
    if not np.all(finite):
        raise BadInput(
            f"{kind}images[{np.argmin(finite)}] has a pixel that is not a finite number; "
            "replace it or leave the image out"
        )
