"""Three sites that report their labels by randomised bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context

from fedraw.flower import TrainConfig, client_app, server_app
from fedraw.privacy.budget import Privacy

COUNTS = {"north": {"cat": 3, "dog": 1}, "south": {"cat": 2}, "west": {"cat": 1, "owl": 3}}
PRIVACY = Privacy("randomised-response", epsilon=20.0, unit="label")


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    return {"w": arrays["w"].numpy() + np.float32(0.1)}, 10


def label_counts(context: Context) -> dict[str, int]:
    return COUNTS[str(context.node_config["site"])]


client = client_app(train=train, label_counts=label_counts, privacy=PRIVACY)
server = server_app(initial_model=lambda: {"w": np.zeros(4, np.float32)})
