"""Named random streams: one per purpose, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Purpose = Literal[
    "holdout",
    "partition",
    "speeds",
    "arrivals",
    "initial model",
    "batches",
    "receivers",
    "images",
    "label noise",
    "drift",
    "privacy",
]  # a new one comes last: the numbers of the others are part of every result
_NUMBER = {purpose: number for number, purpose in enumerate(get_args(Purpose))}


@dataclass(frozen=True)
class Streams:
    """Independent generators that depend on nothing but the seed, the purpose and its indices.

    What one part of a run draws never shifts what another draws, so all methods of one seed meet
    the same clients at the same times.

    >>> a, b = Streams(42), Streams(42)
    >>> _ = a.generator("partition").random(1000)
    >>> a.generator("batches", 3, 0).random() == b.generator("batches", 3, 0).random()
    True
    """

    seed: int

    def generator(self, purpose: Purpose, *indices: int) -> np.random.Generator:
        key = (_NUMBER[purpose], *indices)
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )
