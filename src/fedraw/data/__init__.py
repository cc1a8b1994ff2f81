"""Datasets, partitions over clients, downloads and the cache.

Names are imported when they are first used: importing this package loads nothing else.

- `load(name, rng=...)` loads a dataset by name, and `from_arrays` makes one from your own arrays.
- `coverage`, `dirichlet` and `iid` partition the samples over clients.
- `data_root` is the folder of the public datasets, which `fedraw.data.fetch` downloads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedraw.data.arrays import from_arrays, load_npz
    from fedraw.data.catalog import DATASETS, PUBLIC, Histogram, check, digits, labels_only, load
    from fedraw.data.dataset import Dataset, Images, Pixels
    from fedraw.data.partition import (
        check_partition,
        coverage,
        dirichlet,
        iid,
        label_counts,
        shuffle_labels,
        split_local,
    )
    from fedraw.data.releases import RELEASES, CheckReport, Release
    from fedraw.data.root import Progress, data_root
    from fedraw.data.splits import downscale, limit_per_label

_DEFINED_IN = {
    "arrays": ("from_arrays", "load_npz"),
    "catalog": ("DATASETS", "PUBLIC", "Histogram", "check", "digits", "labels_only", "load"),
    "dataset": ("Dataset", "Images", "Pixels"),
    "partition": (
        "check_partition", "coverage", "dirichlet", "iid", "label_counts", "shuffle_labels",
        "split_local",
    ),
    "releases": ("RELEASES", "CheckReport", "Release"),
    "root": ("Progress", "data_root"),
    "splits": ("downscale", "limit_per_label"),
}  # fmt: skip

__all__ = [
    "DATASETS",
    "PUBLIC",
    "RELEASES",
    "CheckReport",
    "Dataset",
    "Histogram",
    "Images",
    "Pixels",
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
    "shuffle_labels",
    "split_local",
]


def __getattr__(name: str) -> Any:
    for module, names in _DEFINED_IN.items():
        if name in names:
            return getattr(import_module(f"fedraw.data.{module}"), name)
    raise AttributeError(f"module 'fedraw.data' has no attribute {name!r}")
