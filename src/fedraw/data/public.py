"""The public data sets, decoded once and kept: from files in the data root to a Dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data import cache
from fedraw.data.batches import PARTS, Batches
from fedraw.data.cifar10 import find_cifar10
from fedraw.data.dataset import Dataset
from fedraw.data.emnist import find_emnist
from fedraw.data.holdout import grouped, unstratified
from fedraw.data.images import Images
from fedraw.data.lesions import LESION_IDS, Lesions, find_ham10000, find_isic2019
from fedraw.data.progress import Progress
from fedraw.errors import BadInput, nearest

# In the paper a fifth is held out where the release has no test set of its own.
_HELD_OUT = 0.2
DEFAULT_SIZE = 64
_LARGEST = 1024
DEFAULT_HOLDOUT = "random"
_HOLDOUTS = (DEFAULT_HOLDOUT, "grouped")

BATCHES: Mapping[str, Callable[[Path], Batches]] = {"emnist": find_emnist, "cifar10": find_cifar10}
LESIONS: Mapping[str, Callable[[Path], Lesions]] = {
    "ham10000": find_ham10000,
    "isic2019": find_isic2019,
}
PUBLIC = (*BATCHES, *LESIONS)


def load_batches(name: str, root: Path, progress: Progress | None = None) -> Dataset:
    """EMNIST or CIFAR-10, with its official test set."""
    release = BATCHES[name](root)
    write = partial(release.write, progress=progress)
    entry = cache.entry(name, release.facts(), write, progress)
    part = entry.array("part")
    train, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
    return _dataset(name, entry, train, test)


def load_lesions(
    name: str,
    root: Path,
    rng: np.random.Generator,
    *,
    size: int | None = None,
    holdout: str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """HAM10000 or ISIC-2019 as RGB of size x size (64 unless told), the aspect not kept.

    A fifth of the images is the test set: `random` ones, or `grouped`, whole lesions, of which
    none is then on both sides.
    """
    size, holdout = _checked_size(size), _checked_holdout(holdout)
    release = LESIONS[name](root)
    write = partial(release.write, size=size, progress=progress)
    entry = cache.entry(name, release.facts(size), write, progress)
    if holdout == DEFAULT_HOLDOUT:
        return _dataset(name, entry, *unstratified(len(entry.array("labels")), _HELD_OUT, rng))
    if "groups" not in entry:
        raise BadInput(
            f"holdout = 'grouped' needs to know the lesions, and {release.base / LESION_IDS} is "
            "not there; put it there, or use holdout = 'random'"
        )
    return _dataset(name, entry, *grouped(np.array(entry.array("groups")), _HELD_OUT, rng))


def _dataset(name: str, entry: cache.Entry, train: Ints, test: Ints) -> Dataset:
    images = Images(entry.array("images"), sha256=entry.sha256("images"))
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
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _LARGEST:
        raise BadInput(f"size = {size!r}; it must be a whole number of pixels, 1 to {_LARGEST}")
    return size


def _checked_holdout(holdout: str | None) -> str:
    if holdout is not None and holdout not in _HOLDOUTS:
        raise BadInput(f"unknown holdout {holdout!r}; {nearest(holdout, _HOLDOUTS)}")
    return holdout or DEFAULT_HOLDOUT
