"""The bare loop: the same SGD steps in plain torch, without federation, one process per core.

Variant `optim` is torch.optim.SGD, the unit of the table. `foreach` has autograd.grad and one fused
subtraction instead of the optimiser, and shuffles the samples once per epoch. `channels-last` is
`foreach` with images and network in that memory format. The timed part is the steps of the slowest
process, from a common start.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.job import Job
from benchmarks.peers.result import print_result
from benchmarks.peers.spent import Clock, Spent
from torch import nn
from torch.nn import functional

PROCESSES = get_context("spawn")


def foreach(job: Job, module: nn.Module, client: int) -> int:
    """Train one update without an optimiser, and return the number of steps."""
    images, labels = job.clients[client]
    parameters: list[torch.Tensor] = list(module.parameters())
    steps = 0
    for _ in range(job.epochs):
        order = torch.randperm(len(labels))
        batches = torch.split(images[order], job.batch), torch.split(labels[order], job.batch)
        for x, y in zip(*batches, strict=True):
            gradients = torch.autograd.grad(functional.cross_entropy(module(x), y), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-job.lr)
            steps += 1
    return steps


def run_worker(name: str, variant: str, clients: list[int], ready: Any, done: Any) -> None:
    """Train these clients when all workers are ready, and report the time and the steps."""
    torch.set_num_threads(1)
    job = jobs.load(name, channels_last=variant == "channels-last")
    module = job.model().train()
    update: Callable[[Job, nn.Module, int], int] = jobs.train if variant == "optim" else foreach
    for client in range(3):
        update(job, module, client)
    ready.wait()
    clock = Clock()
    steps = sum(update(job, module, client) for client in clients)
    done.put((clock.spent(), steps))


def main() -> None:
    given = jobs.arguments(__doc__, "optim", "foreach", "channels-last")
    clients = [update % jobs.CLIENTS for update in range(given.updates)]
    ready, done = PROCESSES.Barrier(given.cores + 1), PROCESSES.SimpleQueue()
    parts = [clients[i :: given.cores] for i in range(given.cores)]
    workers = [
        PROCESSES.Process(target=run_worker, args=(given.job, given.variant, part, ready, done))
        for part in parts
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    spent, steps = zip(*[done.get() for _ in workers], strict=True)
    seconds, cpu, peak = map(tuple, zip(*spent, strict=True))
    total = Spent(max(seconds), sum(cpu), sum(peak))
    print_result("bare", given, updates=given.updates, steps=sum(steps), spent=total)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
