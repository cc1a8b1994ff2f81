"""Named random streams: one per purpose, all derived from one seed."""

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
    "own training",
    "calibration",
    "availability",
    "losses",
    "membership",
    "bandwidth",
    "long tail",
]  # Add new purposes at the end: every result depends on the positions of the others.
_NUMBER = {purpose: number for number, purpose in enumerate(get_args(Purpose))}


@dataclass(frozen=True)
class Streams:
    """Independent generators that depend only on the seed, the purpose and the indices.

    The draws of one part of a run never shift those of another, so all methods of one seed meet the
    same clients at the same times.

    >>> a, b = Streams(42), Streams(42)
    >>> _ = a.generator("partition").random(1000)
    >>> a.generator("batches", 3, 0).random() == b.generator("batches", 3, 0).random()
    True
    """

    seed: int

    def generator(self, purpose: Purpose, *indices: int) -> np.random.Generator:
        """Return a new generator for a purpose; indices select a client or one of its trainings."""
        key = (_NUMBER[purpose], *indices)
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )
