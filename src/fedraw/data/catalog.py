"""The datasets that a spec can name: the only place that lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedraw.data.dataset import Dataset
from fedraw.data.digits import digits
from fedraw.data.histograms import BY_NAME as HISTOGRAMS
from fedraw.data.histograms import labels_only
from fedraw.data.npz import load_npz
from fedraw.data.progress import Progress
from fedraw.data.public import BATCHES, LESIONS, PUBLIC, load_batches, load_lesions
from fedraw.data.reduce import smaller
from fedraw.data.root import data_root
from fedraw.errors import BadInput, nearest

# Those that are decoded from the files of a data root and kept in the cache.
DECODED = PUBLIC


@dataclass(frozen=True)
class _Wanted:
    name: str
    path: Path | None
    root: Path | None
    size: int | None
    holdout: str | None
    rng: np.random.Generator
    progress: Progress | None


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
    """A dataset by name; `rng` draws the test set where none is published.

    The public data sets are read from the data `root` (default: FEDRAW_DATA). `size` is
    pixels a side, `holdout` for photographs without a test set.

    >>> load("digits", rng=np.random.default_rng(0)).classes
    10
    """
    if name not in BY_NAME:
        raise BadInput(f"unknown dataset {name!r}; {nearest(name, BY_NAME)}")
    wanted = _Wanted(name, path, root, size, holdout, rng, progress)
    _refuse_useless(wanted)
    dataset = BY_NAME[name](wanted)
    if size is None or name in LESIONS:  # photographs are decoded at their size
        return dataset
    return smaller(dataset, size)


def _refuse_useless(wanted: _Wanted) -> None:
    """What has no effect is a misunderstanding."""
    if wanted.holdout is not None and wanted.name not in LESIONS:
        raise BadInput(
            f"dataset {wanted.name!r} takes no holdout, got {wanted.holdout!r}; leave it out (it "
            f"is for {' and '.join(LESIONS)})"
        )
    if wanted.size is not None and wanted.name in HISTOGRAMS:
        raise BadInput(f"dataset {wanted.name!r} has labels only, no size; leave size out")
    if wanted.path is not None and wanted.name != "npz":
        remedy = "give --data, the data root" if wanted.name in PUBLIC else "did you mean 'npz'?"
        raise BadInput(f"dataset {wanted.name!r} has no path, got {str(wanted.path)!r}; {remedy}")


def _digits(wanted: _Wanted) -> Dataset:
    return digits(wanted.rng)


def _npz(wanted: _Wanted) -> Dataset:
    if wanted.path is None:
        raise BadInput("dataset 'npz' needs a path; set path to the .npz file")
    return load_npz(wanted.path, wanted.rng)


def _labels_only(wanted: _Wanted) -> Dataset:
    return labels_only(wanted.name, HISTOGRAMS[wanted.name], wanted.rng)


def _batches(wanted: _Wanted) -> Dataset:
    return load_batches(wanted.name, data_root(wanted.root, wanted.name), wanted.progress)


def _lesions(wanted: _Wanted) -> Dataset:
    return load_lesions(
        wanted.name,
        data_root(wanted.root, wanted.name),
        wanted.rng,
        size=wanted.size,
        holdout=wanted.holdout,
        progress=wanted.progress,
    )


BY_NAME: dict[str, Callable[[_Wanted], Dataset]] = {
    "digits": _digits,
    "npz": _npz,
    **dict.fromkeys(HISTOGRAMS, _labels_only),
    **dict.fromkeys(BATCHES, _batches),
    **dict.fromkeys(LESIONS, _lesions),
}
