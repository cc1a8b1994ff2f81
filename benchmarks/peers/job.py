"""The two jobs of every simulator: the same images, clients, network and mini-batches.

The module needs only NumPy and torch, so that it runs in every peer's environment; `prepare` writes
the data.
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
BUFFER = 10  # updates per aggregation in simulators with a buffer
SHAPES = {"digits": (1, 8, 8), "cnn": (1, 28, 28)}

Samples = tuple[torch.Tensor, torch.Tensor]


class Job(NamedTuple):
    """The data of all clients and the settings of local training."""

    name: str
    epochs: int
    batch: int
    clients: list[Samples]
    lr: float = 0.1
    channels_last: bool = False  # the memory format of images and network

    def model(self) -> nn.Module:
        """Build the network of the job."""
        return network(self.name, self.channels_last)

    def steps(self, client: int) -> int:
        """Return the number of SGD steps of one update of this client."""
        samples = len(self.clients[client][1])
        return self.epochs * -(-samples // self.batch)


class ChannelsLast(nn.Sequential):
    """Layers that compute in the memory format channels last.

    The images are converted if the simulator hands them over in another format: DataLoader makes
    mini-batches in the default format. Weights in another format are an error.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for layer in self:
            # The stride shows the format of tensors with one channel, is_contiguous does not.
            if isinstance(layer, nn.Conv2d) and layer.weight.stride(1) != 1:
                raise RuntimeError("the simulator changed the memory format of the weights")
        images = images.to(memory_format=torch.channels_last)
        return super().forward(images)  # type: ignore[no-any-return, no-untyped-call]


def load(name: str, channels_last: bool = False) -> Job:
    """Load a job by name; `channels_last` is the memory format of its images and network."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        raise SystemExit(f"{path} does not exist; run python -m benchmarks.peers.prepare first")
    arrays = np.load(path)
    images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    shares = zip(
        torch.tensor_split(images, CLIENTS), torch.tensor_split(labels, CLIENTS), strict=True
    )
    epochs, batch = {"digits": (2, 16), "cnn": (1, 64)}[name]
    clients = [(x.clone(), y.clone()) for x, y in shares]
    return Job(name, epochs, batch, clients, channels_last=channels_last)


def network(name: str, channels_last: bool = False) -> nn.Module:
    """Return fedraw's `mlp` or `cnn`, repeated here because peers' environments have no fedraw."""
    if name == "digits":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    layers = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )
    if channels_last:
        return ChannelsLast(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return layers


def train(job: Job, module: nn.Module, client: int) -> int:
    """Train one client's update in plain torch, and return the number of steps."""
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
    """Make a few steps, so that torch's one-time work is not measured."""
    module = job.model().train()
    for client in range(3):
        train(job, module, client)


def arguments(description: str | None, *options: str) -> argparse.Namespace:
    """Parse --job, --updates, --cores and --variant (one of `options`), and pin the process."""
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
    """Restrict this process and its children to this number of cores, and torch to one thread."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(1)
