"""Runs one training in a new interpreter, and prints the digest of the result."""

from __future__ import annotations

import hashlib

import numpy as np

from fedraw.learning.models import build
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector


def digest() -> str:
    rng = np.random.default_rng(7)
    module = build("cnn", (1, 8, 8), 10, rng)
    images = rng.random((40, 1, 8, 8), dtype=np.float32)
    trainer = Trainer(module, SGD(epochs=2, batch=16, momentum=0.9))
    trained = trainer.train(to_vector(module), images, np.arange(40) % 10, rng)
    return hashlib.sha256(trained.tobytes()).hexdigest()


if __name__ == "__main__":
    print(digest())
