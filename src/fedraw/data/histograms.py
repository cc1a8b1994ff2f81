"""Labels without images: what a training-free run needs of a dataset, and no file has to be there.

Who holds which label, and so every rarity score, follows from how many samples a label has. The
counts are those of the public releases; names and order of the skin lesions are the archives' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.data.dataset import Dataset
from fedraw.data.holdout import unstratified
from fedraw.data.images import Images


@dataclass(frozen=True)
class Histogram:
    """Samples of each label; where no test set is published, a share of all is held out."""

    counts: Mapping[str, int]
    holdout: float = 0.0


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HAM10000 = {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142}
ISIC2019 = {
    "mel": 4522, "nv": 12875, "bcc": 3323, "ak": 867, "bkl": 2624, "df": 239, "vasc": 253,
    "scc": 628,
}  # fmt: skip

BY_NAME = {
    "emnist-labels": Histogram({str(label): 2400 for label in range(47)}),
    "cifar10-labels": Histogram(dict.fromkeys(CIFAR10, 5000)),
    "ham10000-labels": Histogram(HAM10000, holdout=0.2),
    "isic2019-labels": Histogram(ISIC2019, holdout=0.2),
}


def labels_only(name: str, histogram: Histogram, rng: np.random.Generator) -> Dataset:
    """A dataset of so many samples of each label, whose images have no pixels.

    >>> data = labels_only("pets", Histogram({"cat": 3, "dog": 1}), np.random.default_rng(0))
    >>> data.labels.tolist(), data.images.shape, data.has_images
    ([0, 0, 0, 1], (4, 0), False)
    """
    names = list(histogram.counts)
    counts = whole_counts(list(histogram.counts.values()), lambda i: f"label {names[i]!r}")
    labels = np.repeat(np.arange(len(counts)), counts)
    # Drawn from all samples alike, not label by label: as the paper's was.
    kept, held = unstratified(len(labels), histogram.holdout, rng)
    return Dataset(
        name, _no_pixels(len(kept)), labels[kept], _no_pixels(len(held)), labels[held], tuple(names)
    )


def _no_pixels(n: int) -> Images:
    return Images(np.zeros((n, 0), np.float32))
