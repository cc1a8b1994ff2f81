"""Flower's client, in a separate module, so that its actors import it once and keep the data."""

from __future__ import annotations

from functools import cache

import torch
from benchmarks.peers import job as jobs
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@cache
def loaded_job(name: str, channels_last: bool) -> tuple[jobs.Job, torch.nn.Module]:
    """Return the job and its network, loaded once per actor."""
    torch.set_num_threads(1)
    job = jobs.load(name, channels_last)
    return job, job.model().train()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Train one update."""
    config = message.content["config"]
    job, module = loaded_job(config["job"], config["channels-last"])
    client = context.node_config["partition-id"]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    steps = jobs.train(job, module, client)
    measured = {"num-examples": len(job.clients[client][1]), "steps": steps}
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord(measured)}
    return Message(content=RecordDict(content), reply_to=message)


def application() -> ClientApp:
    """Return the client app."""
    return app
