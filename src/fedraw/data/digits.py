"""The 1,797 handwritten digits that ship inside scikit-learn: real data, no download."""

from __future__ import annotations

import numpy as np

from fedraw.data.dataset import Dataset, from_arrays
from fedraw.errors import MissingExtra


def digits(rng: np.random.Generator, holdout: float = 0.2) -> Dataset:
    """Ten labels of about 180 images each, shape (1, 8, 8), pixels in [0, 1].

    >>> data = digits(np.random.default_rng(0))
    >>> data.input_shape, len(data.images) + len(data.test_images)
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
