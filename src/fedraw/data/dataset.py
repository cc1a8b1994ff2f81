"""Labelled images with a global test set, checked once and trusted afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.data.arrays import as_images, encode_labels, same_form
from fedraw.data.holdout import stratified
from fedraw.data.images import Images
from fedraw.errors import BadInput, nearest


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to spread over clients, and a test set that belongs to none of them.

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
    notes: tuple[str, ...] = ()  # what every result on this data has to say

    def __post_init__(self) -> None:
        if len(set(self.label_names)) < len(self.label_names):
            twice = next(n for n in self.label_names if self.label_names.count(n) > 1)
            raise BadInput(f"label name {twice!r} stands twice in label_names; make them unique")
        if not len(self.images):
            raise BadInput(f"dataset {self.name!r} has no images; give at least one to train on")
        _check("", self.images, self.labels, self.classes)
        _check("test_", self.test_images, self.test_labels, self.classes)
        if self.test_images.shape[1:] != self.input_shape:
            raise BadInput(
                f"test_images are of shape {self.test_images.shape[1:]} and images of "
                f"{self.input_shape}; bring both to one shape"
            )

    @property
    def classes(self) -> int:
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.images.shape[1:]

    @property
    def has_images(self) -> bool:
        """False where there are only labels, which is enough for a run without training."""
        return 0 not in self.input_shape

    def label_indices(self, names_or_numbers: Sequence[int | str]) -> tuple[int, ...]:
        """The numbers of labels given by name or by number."""
        return tuple(self._label_index(label) for label in names_or_numbers)

    def sha256(self) -> str:
        """A fingerprint of every image and label: two runs are comparable if they agree in it."""
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
                f"unknown label {label!r} of dataset {self.name!r}; "
                f"{nearest(label, self.label_names)}"
            )
        if not 0 <= label < self.classes:
            raise BadInput(
                f"label {label} of dataset {self.name!r} is out of range; "
                f"its labels are 0 to {self.classes - 1}"
            )
        return int(label)


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    name: str = "arrays",
    test_images: npt.ArrayLike | None = None,
    test_labels: npt.ArrayLike | None = None,
    label_names: Sequence[str] | None = None,
    holdout: float = 0.2,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """A dataset from a user's own arrays.

    Images of uint8 mean 0..1 in steps of 1/255; all others keep their values, as float32. Labels
    are numbers from 0, or names, which are then numbered in the order of `label_names` (by default
    the alphabet's). Without test arrays, a share `holdout` of each label, drawn with `rng`, becomes
    the test set.

    >>> rng = np.random.default_rng(0)
    >>> data = from_arrays(np.eye(4), ["b", "a", "b", "a"], holdout=0.5, rng=rng)
    >>> data.label_names, data.labels.tolist(), data.test_labels.tolist()
    (('a', 'b'), [1, 0], [1, 0])
    """
    x = as_images("images", images)
    if test_images is not None and test_labels is not None:
        test_x = as_images("test_images", test_images)
        same_form(images, test_images)
        (y, test_y), names = encode_labels([labels, test_labels], label_names)
        return Dataset(name, Images(x), y, Images(test_x), test_y, names)
    if test_images is not None or test_labels is not None:
        raise BadInput("only one of test_images and test_labels is there; give both, or neither")
    if rng is None:
        raise BadInput("there are no test arrays; give them, or rng = a generator to hold some out")
    (y,), names = encode_labels([labels], label_names)
    everything = Images(x)
    _check("", everything, y, len(names))
    kept, held = stratified(y, holdout, rng)
    chosen, test = everything.select(kept), everything.select(held)
    return Dataset(name, chosen, y[kept], test, y[held], names)


def _check(kind: str, images: Images, labels: Ints, classes: int) -> None:
    if images.dtype not in (np.float32, np.uint8) or labels.dtype != np.int64:
        raise BadInput(
            f"{kind}images are {images.dtype} and {kind}labels {labels.dtype}, not float32 (or "
            "uint8) and int64; fedraw.data.dataset.from_arrays converts them"
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
            f"{kind}labels[{row}] = {labels[row]}, and {classes} label names allow 0 to "
            f"{classes - 1}; mend the label or name all labels"
        )


def _check_finite(kind: str, images: Images) -> None:
    if images.dtype != np.float32 or not len(images):
        return
    pixels = images[:]
    finite = np.isfinite(pixels.reshape(len(pixels), -1)).all(axis=1)
    if not np.all(finite):
        raise BadInput(
            f"{kind}images[{np.argmin(finite)}] holds a pixel that is not a finite number; "
            "replace it or leave the image out"
        )
