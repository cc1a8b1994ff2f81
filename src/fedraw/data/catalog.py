"""The datasets that a spec can name, and how each of them is loaded and checked.

`digits` ships inside scikit-learn, `npz` is the user's own file, `leaf` is a folder that LEAF's
scripts wrote, and the public datasets are decoded once from the files of a data root and cached.
`emnist-labels` and similar datasets have the label counts of the public releases and no images.
They need no files, and suffice for a run without training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.data.arrays import from_arrays, load_npz
from fedraw.data.dataset import Dataset, Inputs, downscale
from fedraw.data.flights import find_flights
from fedraw.data.image_files import find_cifar10, find_emnist
from fedraw.data.leaf import load_leaf
from fedraw.data.lesions import find_ham10000, find_isic2019
from fedraw.data.partition import random_holdout
from fedraw.data.readers import (
    HELD_OUT,
    HOLDOUTS,
    Copy,
    check_copy,
    load_copy,
    refuse_incomplete,
)
from fedraw.data.releases import RELEASES, CheckReport, Progress, data_root
from fedraw.data.shakespeare import find_shakespeare
from fedraw.errors import BadInput, MissingExtra, nearest

DEFAULT_SIZE = 64
_MAX_SIZE = 1024
DEFAULT_HOLDOUT = HOLDOUTS[0]


@dataclass(frozen=True)
class Histogram:
    """Number of samples of each label, and the share of them that is held out for testing."""

    counts: Mapping[str, int]
    holdout: float = 0.0


# Photographs, which are decoded at the requested size.
LESIONS: Mapping[str, Callable[[Path, int | None], Copy]] = {
    "ham10000": find_ham10000,
    "isic2019": find_isic2019,
}
_OTHERS: Mapping[str, Callable[[Path], Copy]] = {
    "emnist": find_emnist,
    "cifar10": find_cifar10,
    "shakespeare": find_shakespeare,
    "flights": find_flights,
}
# Datasets that are decoded from the files of a data root and cached.
PUBLIC = ("emnist", "cifar10", *LESIONS, "shakespeare", "flights")
HISTOGRAMS = {
    **{f"{name}-labels": Histogram(RELEASES[name].counts["train"]) for name in PUBLIC[:2]},
    **{f"{name}-labels": Histogram(RELEASES[name].counts["all"], HELD_OUT) for name in LESIONS},
}
# Datasets whose samples have no pixels, so that no size can be given.
_WITHOUT_PIXELS = (*HISTOGRAMS, "shakespeare", "flights")
_WITH_PATH = {"npz": "the .npz file", "leaf": "the folder that LEAF's scripts wrote"}
DATASETS = ("digits", *_WITH_PATH, *HISTOGRAMS, *PUBLIC)


def load(
    name: str,
    *,
    path: Path | None = None,
    root: Path | None = None,
    size: int | None = None,
    holdout: str | None = None,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> Dataset:
    """Load a dataset by name.

    Args:
        name: one of DATASETS.
        path: the file of dataset 'npz', or the folder of dataset 'leaf'.
        root: the data root of the public datasets (default: FEDRAW_DATA).
        size: pixels per side of each image; the default is 64 for photographs, and the original
            size for all other datasets.
        holdout: how a test set is drawn from photographs, 'random' or 'grouped'.
        rng: draws the test set of a dataset that has no official one.
        progress: called while images are decoded.

    >>> load("digits", rng=np.random.default_rng(0)).classes
    10

    """
    if name not in DATASETS:
        raise BadInput(f"unknown dataset {name!r}; {nearest(name, DATASETS)}")
    _check_settings(name, path, size, holdout)
    if name in LESIONS:
        copy = _copy(name, root, size or DEFAULT_SIZE)
        return load_copy(copy, rng, holdout or DEFAULT_HOLDOUT, progress)
    if name in PUBLIC:
        dataset = load_copy(_copy(name, root), rng, None, progress)
    elif name in HISTOGRAMS:
        dataset = labels_only(name, HISTOGRAMS[name], rng)
    elif name == "digits":
        dataset = digits(rng)
    elif path is None:
        raise BadInput(f"dataset {name!r} needs a path; set path to {_WITH_PATH[name]}")
    else:
        dataset = (load_npz if name == "npz" else load_leaf)(path, rng)
    return dataset if size is None else downscale(dataset, size)


def check(name: str, root: Path | None = None, progress: Progress | None = None) -> CheckReport:
    """Read every file of a public dataset, decode every image, and report what is damaged.

    Raises BadInput if the data root has no file of the dataset. JPEG has no checksum, so altered
    bytes that still decode are not found.
    """
    if name not in PUBLIC:
        raise BadInput(f"dataset {name!r} cannot be checked; {nearest(name, PUBLIC)}")
    return check_copy(_copy(name, root), progress)


def refuse_missing(name: str, root: Path | None = None) -> None:
    """Raise BadInput if files of a public dataset are missing in the data root."""
    if name in PUBLIC:
        refuse_incomplete(_copy(name, root))


def digits(rng: np.random.Generator, holdout: float = 0.2) -> Dataset:
    """Load scikit-learn's 1,797 handwritten digits: shape (1, 8, 8), pixels in [0, 1].

    Each of the ten labels has about 180 images. A share `holdout` of each label is the test set.

    >>> data = digits(np.random.default_rng(0))
    >>> data.input_shape, len(data.inputs) + len(data.test_inputs)
    ((1, 8, 8), 1797)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("scikit-learn", "sim") from error
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).reshape(-1, 1, 8, 8)
    names = [str(number) for number in range(10)]
    return from_arrays(images, labels, name="digits", label_names=names, holdout=holdout, rng=rng)


def labels_only(name: str, histogram: Histogram, rng: np.random.Generator) -> Dataset:
    """Make a dataset with the given number of samples of each label, and no pixels.

    The label counts determine which clients hold a label, and with that every rarity score.

    >>> data = labels_only("pets", Histogram({"cat": 3, "dog": 1}), np.random.default_rng(0))
    >>> data.labels.tolist(), data.inputs.shape, data.has_inputs
    ([0, 0, 0, 1], (4, 0), False)
    """
    names = list(histogram.counts)
    counts = whole_counts(list(histogram.counts.values()), lambda i: f"label {names[i]!r}")
    labels = np.repeat(np.arange(len(counts)), counts)
    inputs = Inputs(np.zeros((len(labels), 0), np.float32))
    whole = Dataset(name, inputs, labels, inputs.select([]), labels[:0], tuple(names))
    # As in the paper, the test set is drawn from all samples together, not label by label.
    kept, held = random_holdout(len(labels), histogram.holdout, rng)
    return whole.keep(kept, held=held)


def _check_settings(name: str, path: Path | None, size: int | None, holdout: str | None) -> None:
    """Refuse settings without effect, and impossible ones of photographs."""
    if holdout is not None and name not in LESIONS:
        raise BadInput(
            f"dataset {name!r} takes no holdout, got {holdout!r}; leave it out (it is for "
            f"{' and '.join(LESIONS)})"
        )
    if size is not None and name in _WITHOUT_PIXELS:
        raise BadInput(f"dataset {name!r} has no images, so it takes no size; leave size out")
    if path is not None and name not in _WITH_PATH:
        remedy = (
            "give the data root with data_root=..." if name in PUBLIC else "did you mean 'npz'?"
        )
        raise BadInput(f"dataset {name!r} takes no path, got {str(path)!r}; {remedy}")
    if name in LESIONS and not (size is None or (type(size) is int and 1 <= size <= _MAX_SIZE)):
        raise BadInput(f"size = {size!r}; it must be a whole number of pixels, 1 to {_MAX_SIZE}")
    if holdout not in (None, *HOLDOUTS):
        raise BadInput(f"unknown holdout {holdout!r}; {nearest(str(holdout), HOLDOUTS)}")


def _copy(name: str, root: Path | None, size: int | None = None) -> Copy:
    folder = data_root(root, name)
    return LESIONS[name](folder, size) if name in LESIONS else _OTHERS[name](folder)
