"""The two jobs that every simulator is given: the same images, clients, network and mini-batches.

Needs NumPy and torch alone, so that it runs in every peer's environment; `prepare` writes the data.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".peers" / "jobs"
CLIENTS = 30
CLASSES = 10
BUFFER = 10  # updates per aggregation, where a simulator buffers
SHAPES = {"digits": (1, 8, 8), "cnn": (1, 28, 28)}

Samples = tuple[torch.Tensor, torch.Tensor]


class Job(NamedTuple):
    name: str
    epochs: int
    batch: int
    clients: list[Samples]
    lr: float = 0.1

    def model(self) -> nn.Module:
        return network(self.name)

    def steps(self, client: int) -> int:
        """SGD steps of one update of this client."""
        samples = len(self.clients[client][1])
        return self.epochs * -(-samples // self.batch)


def load(name: str) -> Job:
    path = DATA / f"{name}.npz"
    if not path.exists():
        raise SystemExit(f"{path} does not exist; python -m benchmarks.peers.prepare writes it")
    arrays = np.load(path)
    images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    shares = zip(
        torch.tensor_split(images, CLIENTS), torch.tensor_split(labels, CLIENTS), strict=True
    )
    epochs, batch = {"digits": (2, 16), "cnn": (1, 64)}[name]
    return Job(name, epochs, batch, [(x.clone(), y.clone()) for x, y in shares])


def network(name: str) -> nn.Module:
    """fedraw's `mlp` and `cnn`, written out: peers' environments have no fedraw."""
    if name == "digits":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def train(job: Job, module: nn.Module, client: int) -> int:
    """One client's update in plain torch; how many steps that were."""
    images, labels = job.clients[client]
    optimiser = torch.optim.SGD(module.parameters(), job.lr)
    steps = 0
    for _ in range(job.epochs):
        for batch in torch.split(torch.randperm(len(labels)), job.batch):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(module(images[batch]), labels[batch]))
            optimiser.step()
            steps += 1
    return steps


def warm_up(job: Job) -> None:
    """What torch does once, at its first steps, is in nobody's time."""
    module = job.model().train()
    for client in range(3):
        train(job, module, client)


def arguments(description: str | None, *options: str) -> argparse.Namespace:
    """--job, --updates, --cores and --variant, one of `options`; pins this process to the cores."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--job", choices=tuple(SHAPES), required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument(
        "--variant", choices=options or ("",), default=options[0] if options else ""
    )
    given = parser.parse_args()
    pin(given.cores)
    return given


def pin(cores: int) -> None:
    """This process and all that it starts stay on so many cores; torch takes one thread."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(1)
