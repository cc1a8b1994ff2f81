"""Flower: its simulation with Ray, one actor per core.

Variant `sync` is Flower's FedAvg with all 30 clients per round. `async` is a FedBuff of about
twenty lines on Flower's Grid (push and pull of messages), with 30 clients in flight.
`channels-last` is `sync` with images and network in that memory format. The timed part is inside
the ServerApp, after one round that starts the actors, and without evaluation. The script runs in
.peers/flower.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.result import print_result
from benchmarks.peers.spent import Clock

State = dict[str, torch.Tensor]
PULL = 0.01  # seconds between two polls; Flower's default of 0.1 is a large part of a round


def synchronous(grid: Any, job: jobs.Job, model: State, updates: int) -> tuple[int, int]:
    """Run FedAvg, and return the number of updates and of SGD steps."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    steps = 0

    def counted(replies: Any, weighted_by: str) -> Any:
        nonlocal steps
        steps += sum(reply["metrics"]["steps"] for reply in replies)
        return replies[0]["metrics"]

    rounds = max(1, round(updates / jobs.CLIENTS))
    strategy = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=counted)
    config = ConfigRecord({"job": job.name, "channels-last": job.channels_last})
    strategy.start(grid, ArrayRecord(model), num_rounds=rounds, train_config=config)
    return rounds * jobs.CLIENTS, steps


def asynchronous(grid: Any, job: jobs.Job, model: State, updates: int) -> tuple[int, int]:
    """Run FedBuff, in which a client receives the newest model after each of its replies."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    def send(nodes: list[int]) -> None:
        config = ConfigRecord({"job": job.name, "channels-last": job.channels_last})
        content = RecordDict({"arrays": ArrayRecord(model), "config": config})
        messages = [Message(content, node, "train") for node in nodes]
        waiting.update(dict.fromkeys(grid.push_messages(messages), model))

    waiting: dict[str, State] = {}
    buffer: list[State] = []
    done = steps = 0
    send(list(grid.get_node_ids()))
    while done < updates:
        replies = list(grid.pull_messages(list(waiting)))
        for reply in replies:
            start = waiting.pop(reply.metadata.reply_to_message_id)
            trained = reply.content["arrays"].to_torch_state_dict()
            buffer.append({name: trained[name] - start[name] for name in start})
            steps += reply.content["metrics"]["steps"]
            done += 1
            if len(buffer) == jobs.BUFFER:
                model = {
                    name: value + sum(delta[name] for delta in buffer) / len(buffer)
                    for name, value in model.items()
                }
                buffer = []
        if replies and done + len(waiting) < updates:
            send([reply.metadata.src_node_id for reply in replies])
        elif not replies:
            time.sleep(PULL)
    return done, steps


RULES: dict[str, Callable[[Any, jobs.Job, State, int], tuple[int, int]]] = {
    "sync": synchronous,
    "async": asynchronous,
    "channels-last": synchronous,
}


def wait_for_clients(grid: Any) -> None:
    """Wait until all simulated nodes are connected."""
    deadline = time.monotonic() + 120
    while len(list(grid.get_node_ids())) < jobs.CLIENTS:
        if time.monotonic() > deadline:
            raise TimeoutError("Flower's simulation did not start; its own messages say why")
        time.sleep(0.1)


def main() -> None:
    given = jobs.arguments(__doc__, *RULES)
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from benchmarks.peers.flower_client import application
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.disable(logging.INFO)
    job = jobs.load(given.job, channels_last=given.variant == "channels-last")
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        grid.pull_interval = PULL
        wait_for_clients(grid)
        model = dict(job.model().state_dict())
        synchronous(grid, job, model, jobs.CLIENTS)
        clock = Clock()
        updates, steps = RULES[given.variant](grid, job, model, given.updates)
        print_result(
            *("flower", given),
            updates=updates,
            steps=steps,
            spent=clock.spent(),
            packages=("flwr", "ray"),
        )

    backend = {
        # A separate Ray cluster, even if another one runs on the machine.
        "init_args": {"num_cpus": given.cores, "address": "local"},
        "client_resources": {"num_cpus": 1},
    }
    run_simulation(server, application(), jobs.CLIENTS, backend_config=backend)


if __name__ == "__main__":
    main()
