"""The datasets that a spec can name, and how each of them is loaded and checked.

`digits` ships inside scikit-learn, `npz` is the user's own file, `leaf` is a folder that LEAF's
scripts wrote, and the public datasets are decoded once from the files of a data root and cached.
`emnist-labels` and similar datasets have the label counts of the public releases and no images.
They need no files, and suffice for a run without training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.core.types import Ints
from fedraw.data import cache
from fedraw.data.arrays import from_arrays, load_npz
from fedraw.data.batches import PARTS, BatchedRelease, find_cifar10, find_emnist
from fedraw.data.dataset import Dataset, Inputs, downscale
from fedraw.data.flights import find_flights
from fedraw.data.leaf import load_leaf
from fedraw.data.lesions import LESION_IDS, Lesions, find_ham10000, find_isic2019
from fedraw.data.natural import NaturalRelease, dataset_of
from fedraw.data.partition import grouped_holdout, random_holdout
from fedraw.data.releases import RELEASES, CheckReport, Progress, data_root
from fedraw.data.shakespeare import find_shakespeare
from fedraw.errors import BadInput, MissingExtra, nearest

# The paper holds out a fifth of the images of a release that has no official test set.
_HELD_OUT = 0.2
DEFAULT_SIZE = 64
_MAX_SIZE = 1024
DEFAULT_HOLDOUT = "random"
_HOLDOUTS = (DEFAULT_HOLDOUT, "grouped")


@dataclass(frozen=True)
class Histogram:
    """Number of samples of each label, and the share of them that is held out for testing."""

    counts: Mapping[str, int]
    holdout: float = 0.0


# Public releases by how their files are read.
BATCHES: Mapping[str, Callable[[Path], BatchedRelease]] = {
    "emnist": find_emnist,
    "cifar10": find_cifar10,
}
LESIONS: Mapping[str, Callable[[Path], Lesions]] = {
    "ham10000": find_ham10000,
    "isic2019": find_isic2019,
}
NATURAL: Mapping[str, Callable[[Path], NaturalRelease]] = {
    "shakespeare": find_shakespeare,
    "flights": find_flights,
}
# Datasets that are decoded from the files of a data root and cached.
PUBLIC = (*BATCHES, *LESIONS, *NATURAL)
HISTOGRAMS = {
    **{f"{name}-labels": Histogram(RELEASES[name].counts["train"]) for name in BATCHES},
    **{f"{name}-labels": Histogram(RELEASES[name].counts["all"], _HELD_OUT) for name in LESIONS},
}
# Datasets whose samples have no pixels, so that no size can be given.
_WITHOUT_PIXELS = (*HISTOGRAMS, *NATURAL)
DATASETS = ("digits", "npz", "leaf", *HISTOGRAMS, *PUBLIC)


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
    _refuse_settings_without_effect(name, path, size, holdout)
    if name in LESIONS:  # photographs are decoded at the requested size
        return load_lesions(
            name, data_root(root, name), rng, size=size, holdout=holdout, progress=progress
        )
    if name in BATCHES:
        dataset = load_batches(name, data_root(root, name), progress)
    elif name in NATURAL:
        release = NATURAL[name](data_root(root, name))
        write = partial(release.write, progress=progress)
        entry = cache.entry(name, release.facts(), write, progress)
        dataset = dataset_of(RELEASES[name], entry, rng)
    elif name in HISTOGRAMS:
        dataset = labels_only(name, HISTOGRAMS[name], rng)
    elif name == "digits":
        dataset = digits(rng)
    elif path is None:
        what = "the .npz file" if name == "npz" else "the folder that LEAF's scripts wrote"
        raise BadInput(f"dataset {name!r} needs a path; set path to {what}")
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
    folder = data_root(root, name)
    release: BatchedRelease | Lesions | NaturalRelease
    if name in BATCHES:
        release = BATCHES[name](folder)
    else:
        release = LESIONS[name](folder) if name in LESIONS else NATURAL[name](folder)
    return release.check(progress)


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
    # As in the paper, the test set is drawn from all samples together, not label by label.
    kept, held = random_holdout(len(labels), histogram.holdout, rng)
    return Dataset(
        name, _no_pixels(len(kept)), labels[kept], _no_pixels(len(held)), labels[held], tuple(names)
    )


def load_batches(name: str, root: Path, progress: Progress | None = None) -> Dataset:
    """Load EMNIST or CIFAR-10 with its official test set."""
    release = BATCHES[name](root)
    write = partial(release.write, progress=progress)
    entry = cache.entry(name, release.facts(), write, progress)
    part = entry.array("part")
    train, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
    return _from_cache(name, entry, train, test)


def load_lesions(
    name: str,
    root: Path,
    rng: np.random.Generator,
    *,
    size: int | None = None,
    holdout: str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load HAM10000 or ISIC-2019 as RGB of size x size (default: 64), ignoring the aspect ratio.

    A fifth of the images is the test set. With `holdout` = 'random' (default), it is drawn from all
    images. With 'grouped', whole lesions are drawn, so that no lesion is in both train and test.
    """
    size, holdout = _checked_size(size), _checked_holdout(holdout)
    release = LESIONS[name](root)
    write = partial(release.write, size=size, progress=progress)
    entry = cache.entry(name, release.facts(size), write, progress)
    if holdout == DEFAULT_HOLDOUT:
        split = random_holdout(len(entry.array("labels")), _HELD_OUT, rng)
    elif "groups" in entry:
        split = grouped_holdout(np.array(entry.array("groups")), _HELD_OUT, rng)
    else:
        raise BadInput(
            f"holdout = 'grouped' needs the lesion of each image, but {release.base / LESION_IDS} "
            "does not exist; put it there, or use holdout = 'random'"
        )
    return _from_cache(name, entry, *split)


def _refuse_settings_without_effect(
    name: str, path: Path | None, size: int | None, holdout: str | None
) -> None:
    if holdout is not None and name not in LESIONS:
        raise BadInput(
            f"dataset {name!r} takes no holdout, got {holdout!r}; leave it out (it is for "
            f"{' and '.join(LESIONS)})"
        )
    if size is not None and name in _WITHOUT_PIXELS:
        raise BadInput(f"dataset {name!r} has no images, so it takes no size; leave size out")
    if path is not None and name not in ("npz", "leaf"):
        remedy = (
            "give the data root with data_root=..." if name in PUBLIC else "did you mean 'npz'?"
        )
        raise BadInput(f"dataset {name!r} takes no path, got {str(path)!r}; {remedy}")


def _no_pixels(n: int) -> Inputs:
    return Inputs(np.zeros((n, 0), np.float32))


def _from_cache(name: str, entry: cache.Entry, train: Ints, test: Ints) -> Dataset:
    images = Inputs(entry.array("images"), sha256=entry.sha256("images"))
    labels, info = np.array(entry.array("labels")), entry.info
    return Dataset(
        name,
        images.select(train),
        labels[train],
        images.select(test),
        labels[test],
        tuple(info["label_names"]),
        tuple(info["notes"]),
    )


def _checked_size(size: int | None) -> int:
    if size is None:
        return DEFAULT_SIZE
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MAX_SIZE:
        raise BadInput(f"size = {size!r}; it must be a whole number of pixels, 1 to {_MAX_SIZE}")
    return size


def _checked_holdout(holdout: str | None) -> str:
    if holdout is not None and holdout not in _HOLDOUTS:
        raise BadInput(f"unknown holdout {holdout!r}; {nearest(holdout, _HOLDOUTS)}")
    return holdout or DEFAULT_HOLDOUT
