"""APPFL: its virtual-time asynchronous driver with FedBuff, a buffer of 10, 30 clients in flight.

It trains one client after the other in one process; with two cores torch gets two threads.
gc-off: its own option `optimize_memory` off everywhere; shipped: on, which collects garbage many
times an update. Timed: `AsyncSimDriver.run`, without validation, with logging below warnings off.
Clients train when they are dispatched, so those in flight at the end have been trained for nothing:
their steps count, their updates do not. Runs in .peers/appfl.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.result import tell
from benchmarks.peers.shims import declare_nms
from benchmarks.peers.spent import Clock


def accuracy(labels: Any, scores: Any) -> float:
    """The metric that its trainer computes on every epoch's own predictions; it requires one."""
    return float(np.mean(np.argmax(scores, axis=1) == labels))


def settings(job: jobs.Job, updates: int, frugal: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the server and of a client; `frugal` is APPFL's `optimize_memory`."""
    memory = {"optimize_memory": frugal}
    model = {
        "model_path": str(Path(jobs.__file__)),
        "model_name": "network",
        "model_kwargs": {"name": job.name},
    }
    training = {
        **memory,
        **{"trainer": "VanillaTrainer", "device": "cpu", "do_validation": False},
        **{"mode": "epoch", "num_local_epochs": job.epochs, "train_batch_size": job.batch},
        **{"optim": "SGD", "optim_args": {"lr": job.lr}, "loss_fn": "CrossEntropyLoss"},
        **{"metric_path": str(Path(__file__)), "metric_name": "accuracy"},
    }
    server = {
        **memory,
        **{"num_clients": jobs.CLIENTS, "num_global_epochs": updates, "device": "cpu"},
        **{"scheduler": "AsyncScheduler", "scheduler_kwargs": memory},
        **{"aggregator": "FedBuffAggregator"},
        "aggregator_kwargs": {**memory, "K": jobs.BUFFER, "alpha": 3.0},
    }
    clients = {"model_configs": model, "train_configs": training}
    return {"client_configs": clients, "server_configs": server}, {**memory, **clients}


def driver_of(job: jobs.Job, updates: int, frugal: bool) -> Any:
    from appfl.agent.sim_client import SimClientAgent
    from appfl.agent.sim_server import SimServerAgent
    from appfl.vsim import AsyncSimDriver, ClientProfile

    server, client = settings(job, updates, frugal)
    agents = [
        SimClientAgent(client, str(i), torch.utils.data.TensorDataset(*samples))
        for i, samples in enumerate(job.clients)
    ]
    profiles = {str(i): ClientProfile(compute_factor=1 + i / 10) for i in range(jobs.CLIENTS)}
    return AsyncSimDriver(
        SimServerAgent(server),
        agents,
        profiles,
        max_in_flight=jobs.CLIENTS,
        logger=logging.getLogger("appfl"),
        base_step_time=0.001,  # virtual: the order of arrivals depends on no clock
    )


def main() -> None:
    given = jobs.arguments(__doc__, "gc-off", "shipped")
    torch.set_num_threads(given.cores)
    declare_nms()
    logging.disable(logging.INFO)
    job = jobs.load(given.job)
    jobs.warm_up(job)
    os.chdir(tempfile.mkdtemp())  # where its agents leave their log files
    driver = driver_of(job, given.updates, frugal=given.variant == "shipped")
    clock = Clock()
    driver.run()
    spent = clock.spent()
    trained = sum(client.trainer.round for client in driver.clients.values())
    tell(
        *("appfl", given),
        updates=len(driver.history),
        steps=trained * job.steps(0),
        spent=spent,
        packages=("appfl",),
        note=f"{trained - len(driver.history)} more clients trained for nothing",
    )


if __name__ == "__main__":
    main()
