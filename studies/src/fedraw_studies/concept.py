"""Figure 2: the weights in a buffer of five, of whose clients one holds a rare label."""

from __future__ import annotations

from statistics import fmean

from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarity_scores
from fedraw.core.weighting import weights
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec

SLOTS = 5


def concept_weights(seed: int, method: str) -> dict[str, float]:
    """Of a rare and of a common client with the mean scores of EMNIST's.

    >>> concept_weights(42, "FedFa")
    {'RareWeight': 0.2, 'CommonWeight': 0.2}
    """
    if method != "FedRAW":
        return {"RareWeight": 1 / SLOTS, "CommonWeight": 1 / SLOTS}
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
    heavy, light, *_ = weights([rare] + [common] * (SLOTS - 1)).tolist()
    return {"RareWeight": heavy, "CommonWeight": light}
