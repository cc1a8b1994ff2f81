"""The datasets that a spec can name: the only place that lists them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedraw.data.dataset import Dataset
from fedraw.data.digits import digits
from fedraw.data.histograms import BY_NAME as HISTOGRAMS
from fedraw.data.histograms import labels_only
from fedraw.data.npz import load_npz
from fedraw.errors import BadInput, nearest

Loader = Callable[[Path | None, np.random.Generator], Dataset]


def load(name: str, *, path: Path | None = None, rng: np.random.Generator) -> Dataset:
    """A dataset by name; `rng` draws the test set where none is published.

    >>> load("digits", rng=np.random.default_rng(0)).classes
    10
    """
    if name not in BY_NAME:
        raise BadInput(f"unknown dataset {name!r}; {nearest(name, BY_NAME)}")
    return BY_NAME[name](path, rng)


def _digits(path: Path | None, rng: np.random.Generator) -> Dataset:
    if path is not None:
        raise BadInput(f"dataset 'digits' has no path, got {str(path)!r}; did you mean 'npz'?")
    return digits(rng)


def _npz(path: Path | None, rng: np.random.Generator) -> Dataset:
    if path is None:
        raise BadInput("dataset 'npz' needs a path; set path to the .npz file")
    return load_npz(path, rng)


def _labels_only(name: str) -> Loader:
    def load_labels(path: Path | None, rng: np.random.Generator) -> Dataset:
        if path is not None:
            raise BadInput(f"dataset {name!r} has no path, got {str(path)!r}; did you mean 'npz'?")
        return labels_only(name, HISTOGRAMS[name], rng)

    return load_labels


BY_NAME: dict[str, Loader] = {
    "digits": _digits,
    "npz": _npz,
    **{name: _labels_only(name) for name in HISTOGRAMS},
}
