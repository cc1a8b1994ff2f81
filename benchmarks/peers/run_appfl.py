"""APPFL: its virtual-time asynchronous driver with FedBuff, a buffer of 10, 30 clients in flight.

APPFL trains one client after the other in one process; with two cores, torch has two threads.
Variant gc-off sets its option `optimize_memory` to off everywhere; `shipped` leaves it on, which
collects garbage many times per update. `channels-last` is gc-off with images and network in that
memory format. The timed part is `AsyncSimDriver.run`, without validation and without logging below
warnings. Clients train when they are dispatched, so the training of clients in flight at the end is
unused: their steps count, and their updates do not. The script runs in .peers/appfl.
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
from benchmarks.peers.result import print_result
from benchmarks.peers.shims import declare_nms
from benchmarks.peers.spent import Clock


def accuracy(labels: Any, scores: Any) -> float:
    """Return the accuracy; APPFL's trainer requires a metric for the predictions of an epoch."""
    return float(np.mean(np.argmax(scores, axis=1) == labels))


def settings(job: jobs.Job, updates: int, frugal: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the server and of a client; `frugal` is APPFL's `optimize_memory`."""
    memory = {"optimize_memory": frugal}
    model = {
        "model_path": str(Path(jobs.__file__)),
        "model_name": "network",
        "model_kwargs": {"name": job.name, "channels_last": job.channels_last},
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
    """Return APPFL's driver with its server and clients."""
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
        base_step_time=0.001,  # virtual, so that the order of arrivals does not depend on a clock
    )


def main() -> None:
    given = jobs.arguments(__doc__, "gc-off", "shipped", "channels-last")
    torch.set_num_threads(given.cores)
    declare_nms()
    logging.disable(logging.INFO)
    job = jobs.load(given.job, channels_last=given.variant == "channels-last")
    jobs.warm_up(job)
    os.chdir(tempfile.mkdtemp())  # the agents write log files to the current folder
    driver = driver_of(job, given.updates, frugal=given.variant == "shipped")
    clock = Clock()
    driver.run()
    spent = clock.spent()
    trained = sum(client.trainer.round for client in driver.clients.values())
    print_result(
        *("appfl", given),
        updates=len(driver.history),
        steps=trained * job.steps(0),
        spent=spent,
        packages=("appfl",),
        note=f"{trained - len(driver.history)} more updates trained and not used",
    )


if __name__ == "__main__":
    main()
