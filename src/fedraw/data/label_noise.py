"""Labels that a careless annotator mixed up."""

from __future__ import annotations

import numpy as np

from fedraw.core.types import Ints


def mixed_up(labels: Ints, share: float, rng: np.random.Generator) -> Ints:
    """A client's labels, a share of them shuffled among themselves.

    So many of each label are there as before: what the client reports stays true, and a method that
    goes by counts notices nothing.

    >>> labels = np.array([1, 1, 1, 2, 2, 2])
    >>> mixed = mixed_up(labels, 1.0, np.random.default_rng(0))
    >>> mixed.tolist(), np.bincount(mixed).tolist()
    ([2, 2, 1, 1, 2, 1], [0, 3, 3])
    """
    chosen = rng.permutation(labels.size)[: round(share * labels.size)]
    mixed = labels.copy()
    mixed[chosen] = labels[rng.permutation(chosen)]
    return mixed
