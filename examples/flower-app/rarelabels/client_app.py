"""A site, which trains the received model on its own images and reports its label counts."""

import time
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Context

from fedraw.flower import TrainConfig, client_app
from rarelabels import task


def my_site(context: Context) -> str:
    """Return the site of the node's config; in a simulation, the site of the partition."""
    config = context.node_config
    return str(config["site"]) if "site" in config else list(task.LABELS)[config["partition-id"]]


def train(
    arrays: ArrayRecord, config: TrainConfig, context: Context
) -> tuple[Mapping[str, Any], int]:
    model = task.network()
    model.load_state_dict(arrays.to_torch_state_dict())
    site = my_site(context)
    settings = context.run_config
    examples = task.train(
        model, site, config.version, int(settings["epochs"]), float(settings["rate"])
    )
    # Simulate a slow machine, with the delay of the node's config or else of the site.
    time.sleep(float(context.node_config.get("delay", task.DELAYS.get(site, 0.0))))
    return model.state_dict(), examples


def label_counts(context: Context) -> Mapping[str, int]:
    return task.label_counts(my_site(context))


app = client_app(train=train, label_counts=label_counts)
