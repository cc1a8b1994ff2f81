"""Datasets, partitions over clients, downloads and the cache.

Names are imported when they are first used: importing this package loads nothing else.

- `load(name, rng=...)` loads a dataset by name, `from_arrays` makes one from your own arrays, and
  `own_dataset` from any form of data that a run accepts.
- `coverage`, `dirichlet` and `iid` partition the samples over clients.
- `data_root` is the folder of the public datasets, which `fedraw.data.fetch` downloads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedraw.data.arrays import from_arrays, load_npz
    from fedraw.data.catalog import DATASETS, PUBLIC, Histogram, check, digits, labels_only, load
    from fedraw.data.columns import Columns
    from fedraw.data.dataset import Dataset, Inputs, downscale, limit_per_label
    from fedraw.data.own_data import own_dataset
    from fedraw.data.partition import (
        check_partition,
        coverage,
        dirichlet,
        iid,
        label_counts,
        shuffle_labels,
        split_local,
    )
    from fedraw.data.releases import RELEASES, CheckReport, Progress, Release, data_root

_DEFINED_IN = {
    "arrays": ("from_arrays", "load_npz"),
    "catalog": ("DATASETS", "PUBLIC", "Histogram", "check", "digits", "labels_only", "load"),
    "dataset": ("Dataset", "Inputs", "downscale", "limit_per_label"),
    "columns": ("Columns",),
    "own_data": ("own_dataset",),
    "partition": (
        "check_partition", "coverage", "dirichlet", "iid", "label_counts", "shuffle_labels",
        "split_local",
    ),
    "releases": ("RELEASES", "CheckReport", "Progress", "Release", "data_root"),
}  # fmt: skip

__all__ = [
    "DATASETS",
    "PUBLIC",
    "RELEASES",
    "CheckReport",
    "Columns",
    "Dataset",
    "Histogram",
    "Inputs",
    "Progress",
    "Release",
    "check",
    "check_partition",
    "coverage",
    "data_root",
    "digits",
    "dirichlet",
    "downscale",
    "from_arrays",
    "iid",
    "label_counts",
    "labels_only",
    "limit_per_label",
    "load",
    "load_npz",
    "own_dataset",
    "shuffle_labels",
    "split_local",
]


def __getattr__(name: str) -> Any:
    for module, names in _DEFINED_IN.items():
        if name in names:
            return getattr(import_module(f"fedraw.data.{module}"), name)
    raise AttributeError(f"module 'fedraw.data' has no attribute {name!r}")
