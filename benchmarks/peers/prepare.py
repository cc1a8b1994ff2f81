"""Writes the images of both jobs to .peers/jobs, for environments without fedraw."""

from __future__ import annotations

import numpy as np
from benchmarks.peers.job import CLASSES, DATA, SHAPES

from fedraw.data.catalog import digits


def prepare() -> None:
    """Write the arrays of both jobs."""
    DATA.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    real = digits(rng)
    order = rng.permutation(len(real.labels))
    np.savez(DATA / "digits.npz", images=real.inputs[:][order], labels=real.labels[order])
    noise = rng.random((3_600, *SHAPES["cnn"]), np.float32)
    np.savez(DATA / "cnn.npz", images=noise, labels=np.arange(3_600) % CLASSES)


if __name__ == "__main__":
    prepare()
