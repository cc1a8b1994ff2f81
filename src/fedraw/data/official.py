"""What the public releases hold officially, and how a copy on disk compares with that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.histograms import CIFAR10, HAM10000, ISIC2019
from fedraw.data.root import several

# Part of the release ('train' and 'test', or 'all' where it is not split) -> label -> images.
Counts = Mapping[str, Mapping[str, int]]

EMNIST = tuple(str(number) for number in range(47))

COUNTS: Mapping[str, Counts] = {
    "emnist": {"train": dict.fromkeys(EMNIST, 2400), "test": dict.fromkeys(EMNIST, 400)},
    "cifar10": {"train": dict.fromkeys(CIFAR10, 5000), "test": dict.fromkeys(CIFAR10, 1000)},
    "ham10000": {"all": HAM10000},
    "isic2019": {"all": ISIC2019},
}


@dataclass(frozen=True)
class Checked:
    """What was read of a release: its images, what differs from the official, what is damaged."""

    name: str
    counts: Counts
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def tally(labels: Ints, names: Sequence[str]) -> dict[str, int]:
    """Images of each label.

    >>> tally(np.array([1, 1]), ["cat", "dog"])
    {'cat': 0, 'dog': 2}
    """
    counts = np.bincount(labels, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def count_notes(name: str, counts: Counts) -> tuple[str, ...]:
    """What a result on this copy must say, one fact each; nothing if it is the official one.

    >>> count_notes("ham10000", {"all": {"nv": 12}})
    ('ham10000: 12 images, official 10,015',)
    """
    return tuple(_count_notes(name, counts))


def _count_notes(name: str, counts: Counts) -> Iterator[str]:
    for part, official in COUNTS[name].items():
        found, kind = counts.get(part, {}), "" if part == "all" else f"{part} "
        total, wanted = sum(found.values()), sum(official.values())
        other = [label for label, n in official.items() if found.get(label, 0) != n]
        if total != wanted:
            yield f"{name}: {total:,} {kind}images, official {wanted:,}"
        elif other:
            each = [f"{label} {found.get(label, 0):,} ({official[label]:,})" for label in other]
            yield f"{name}: {kind}images by label (official) differ: {several(each, 3)}"
