"""A federation of four in Flower's simulation: python -m tests.flower.one_simulation FOLDER.

Each site knows one coordinate of a point and pulls the model towards it; the model of the last one,
the only holder of label "owl", has to arrive as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.simulation import run_simulation

from fedraw.flower import Recall, TrainConfig, client_app, server_app
from fedraw.strategies.fedraw import FedRAW

SITES = 4
MODEL = {"w": np.zeros(SITES, np.float32), "seen": np.array(0)}


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    model["w"][int(context.node_config["partition-id"])] += 1
    return model, 5


def label_counts(context: Context) -> dict[str, int]:
    return {"owl": 5} if context.node_config["partition-id"] == SITES - 1 else {"cat": 5}


def evaluate(arrays: ArrayRecord) -> Recall:
    found = int((arrays["w"].numpy() > 0).sum())
    return Recall({"found": found}, {"found": SITES})


def main(folder: Path) -> None:
    run_simulation(
        server_app(
            initial_model=lambda: MODEL,
            strategy=FedRAW(buffer=SITES),
            evaluate=evaluate,
            settings={
                "folder": folder,
                "min_clients": SITES,
                "arrivals": 12,
                "evaluate_every": 4,
                "poll": 0.1,
            },
        ),
        client_app(train=train, label_counts=label_counts),
        num_supernodes=SITES,
        backend_config={
            # A cluster of its own, whatever else runs on this machine.
            "init_args": {"address": "local", "num_cpus": 2},
            "client_resources": {"num_cpus": 1},
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
