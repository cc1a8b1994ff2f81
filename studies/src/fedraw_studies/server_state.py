"""How much a server keeps: the arrays in a strategy's state, counted in models."""

from __future__ import annotations

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.update import Update
from fedraw.disk.snapshot import Arrays, pack
from fedraw.strategies.catalog import BY_NAME
from fedraw.strategies.protocol import Arrived, Setup

PARAMETERS = 64


def model_copies(strategy: str, clients: int, buffer: int = 10) -> float:
    """After every client was heard twice; a float64 sum counts as two models.

    >>> model_copies("fedraw", clients=30), model_copies("fedraw", clients=60)
    (13.0, 13.0)
    """
    method = BY_NAME[strategy](buffer=buffer)
    table = LabelTable.from_counts({f"client {i}": {"label": 1} for i in range(clients)})
    model = np.zeros(PARAMETERS, np.float32)
    state, _ = method.start(Setup(model, table))
    for turn in range(2 * clients):
        vector = np.full(PARAMETERS, turn, np.float32)
        update = Update(table.clients[turn % clients], state.version, vector, 1)
        state, _ = method.step(state, Arrived(update))
    kept = Arrays()
    pack(state, kept)
    vectors = [array for array in kept.values() if array.size == PARAMETERS]
    return sum(array.nbytes for array in vectors) / model.nbytes
