"""Compares implementations of local training: seconds relative to a plain torch loop.

The plain loop is torch.optim.SGD with an index per mini-batch; all others make the same steps on
the same samples. `trainer` is fedraw's training of any network, and `dense` that of networks of
linear layers, for one client or, as in the batched executor, for several at a time. Each figure is
the median over rounds in which all implementations alternate.
Run: make bench
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from benchmarks.machine import headline
from torch import nn
from torch.nn import functional

from fedraw.learning.batched import BatchedClient, BatchedTrainer, ClientSamples
from fedraw.learning.models import build
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector

Run = Callable[[], None]
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
LR = 0.1


class Job:
    """One client's samples, and the number of its trainings."""

    def __init__(
        self, model: str, shape: tuple[int, ...], samples: int, batch: int, trainings: int
    ) -> None:
        rng = np.random.default_rng(0)
        self.model, self.shape, self.batch, self.trainings = model, shape, batch, trainings
        self.images = rng.random((samples, *shape), np.float32)
        self.labels = rng.integers(0, 10, samples)
        self.x, self.y = torch.from_numpy(self.images), torch.from_numpy(self.labels)

    def module(self) -> nn.Module:
        """Build the network, always with the same weights."""
        return build(self.model, self.shape, 10, np.random.default_rng(0)).train()

    def indexed(self) -> Batches:
        """Yield mini-batches, each selected by its own index."""
        for _ in range(self.trainings):
            for rows in torch.split(torch.randperm(len(self.x)), self.batch):
                yield self.x[rows], self.y[rows]

    def shuffled(self, layout: torch.memory_format | None = None) -> Batches:
        """Yield mini-batches as views of one shuffled copy per epoch."""
        for _ in range(self.trainings):
            order = torch.randperm(len(self.x))
            x = self.x[order] if layout is None else self.x[order].to(memory_format=layout)
            y = self.y[order]
            yield from zip(torch.split(x, self.batch), torch.split(y, self.batch), strict=True)


def plain(job: Job) -> Run:
    """Train with torch.optim.SGD."""
    module = job.module()
    optimiser = torch.optim.SGD(module.parameters(), LR)

    def run() -> None:
        for images, labels in job.indexed():
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(module(images), labels))
            optimiser.step()

    return run


def foreach(job: Job, layout: torch.memory_format | None = None) -> Run:
    """Train without an optimiser: one call changes all parameters by their gradients."""
    module = job.module()
    parameters: list[torch.Tensor] = list(module.parameters())

    def run() -> None:
        for images, labels in job.shuffled(layout):
            loss = functional.cross_entropy(module(images), labels)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-LR)

    return run


def trainer(job: Job) -> Run:
    """Train one flat vector, so that a step is one operation for any number of layers."""
    module = job.module()
    ours, start = Trainer(module, SGD(1, job.batch, LR)), to_vector(module)
    rng = np.random.default_rng(0)

    def run() -> None:
        for _ in range(job.trainings):
            ours.train(start, job.images, job.labels, rng)

    return run


def dense(job: Job, clients: int = 1) -> Run:
    """Train this number of clients per call, with gradients in closed form in NumPy."""
    module = job.module()
    samples = ClientSamples(
        lambda rows: job.images.take(rows, 0), job.labels, job.shape, len(job.labels)
    )
    ours, start = BatchedTrainer(module, SGD(1, job.batch, LR), samples), to_vector(module)
    rng = np.random.default_rng(0)

    def run() -> None:
        for _ in range(job.trainings // clients):
            ours.train([BatchedClient(start, slice(0, len(job.labels)), rng)] * clients)

    return run


def measure(title: str, runs: dict[str, Run], rounds: int) -> None:
    """Print the time of each implementation relative to the first one."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    first = median(next(iter(seconds.values())))
    print(f"\n{title}")
    for name, taken in seconds.items():
        ratios = [t / first for t in taken]
        print(f"{name:>44} {median(ratios):>6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    torch.set_num_threads(1)
    print(headline())
    digits = Job("mlp", (1, 8, 8), samples=48, batch=16, trainings=400)
    measure(
        "digits-MLP, 48 samples in batches of 16",
        {
            "torch.optim.SGD": plain(digits),
            "autograd.grad and _foreach_add_": foreach(digits),
            "trainer: one flat vector": trainer(digits),
            "dense: closed form": dense(digits),
            "dense, 8 clients in a call": dense(digits, 8),
        },
        rounds=5,
    )
    for batch in (64, 256):
        images = Job("cnn", (1, 28, 28), samples=512, batch=batch, trainings=1)
        measure(
            f"CNN 28x28, 512 samples in batches of {batch}",
            {
                "torch.optim.SGD": plain(images),
                "autograd.grad and _foreach_add_": foreach(images),
                "the same, channels last": foreach(images, torch.channels_last),
                "trainer: one flat vector, channels last": trainer(images),
            },
            rounds=5,
        )


if __name__ == "__main__":
    main()
