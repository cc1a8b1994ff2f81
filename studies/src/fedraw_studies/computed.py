"""Values that need no run: the weights of Figure 2, and the models that a server keeps."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarity_scores
from fedraw.core.update import Update
from fedraw.core.weighting import weights
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec
from fedraw.storage.snapshot import Arrays, pack
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Setup

_SLOTS = 5
_PARAMETERS = 64


def buffer_weights(seed: int, method: str) -> dict[str, float]:
    """Weights in a buffer of five with one rare client, by the mean scores of EMNIST's clients.

    >>> buffer_weights(42, "FedFa")
    {'RareWeight': 0.2, 'CommonWeight': 0.2}
    """
    if method != "FedRAW":
        return {"RareWeight": 1 / _SLOTS, "CommonWeight": 1 / _SLOTS}
    spec = Spec.read(
        {
            "data": {"name": "emnist-labels"},
            "partition": {"rare_labels": [44, 45, 46]},
            "training": {"kind": "none"},
        }
    )
    clients = draw_clients(spec, Streams(seed))
    scores = list(enumerate(rarity_scores(clients.table)))
    rare = fmean(float(score) for client, score in scores if client in clients.rare)
    common = fmean(float(score) for client, score in scores if client not in clients.rare)
    heavy, light, *_ = weights([rare] + [common] * (_SLOTS - 1)).tolist()
    return {"RareWeight": heavy, "CommonWeight": light}


def model_copies(strategy: str, clients: int, buffer: int = 10) -> float:
    """Count the models in a strategy's state after every client has sent two updates.

    An array counts by its bytes, so a sum in double precision is two models.

    >>> model_copies("fedraw", clients=30), model_copies("fedraw", clients=60)
    (13.0, 13.0)
    """
    method = CATALOG[strategy].make({"buffer": buffer})
    table = LabelTable.from_counts({f"client {i}": {"label": 1} for i in range(clients)})
    model = np.zeros(_PARAMETERS, np.float32)
    state, _ = method.start(Setup(model, table))
    for turn in range(2 * clients):
        vector = np.full(_PARAMETERS, turn, np.float32)
        update = Update(table.clients[turn % clients], state.version, vector, 1)
        state, _ = method.step(state, Arrived(update))
    kept = Arrays()
    pack(state, kept)
    vectors = [array for array in kept.values() if array.size == _PARAMETERS]
    return sum(array.nbytes for array in vectors) / model.nbytes
