"""One measurement as one line of JSON, the same form for every simulator."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import NamedTuple

import torch
from benchmarks.peers.spent import Spent


class Measured(NamedTuple):
    peer: str
    variant: str
    job: str
    cores: int
    updates: int  # that reached the server in the timed part
    steps: int  # SGD steps really done in it
    seconds: float
    cpu: float  # seconds of all cores
    peak_mb: int
    versions: dict[str, str]
    note: str

    @property
    def per_step(self) -> float:
        return self.seconds / self.steps

    @property
    def cpu_per_step(self) -> float:
        return self.cpu / self.steps


def tell(
    peer: str,
    given: object,
    *,
    updates: int,
    steps: int,
    spent: Spent,
    packages: tuple[str, ...] = (),
    note: str = "",
) -> None:
    """Print the line; `given` is what `job.arguments` returned."""
    asked = vars(given)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions |= {name: metadata.version(name) for name in packages}
    measured = Measured(
        peer=peer,
        variant=asked["variant"],
        job=asked["job"],
        cores=asked["cores"],
        updates=updates,
        steps=steps,
        seconds=spent.seconds,
        cpu=spent.cpu,
        peak_mb=spent.peak_mb,
        versions=versions,
        note=note,
    )
    print(json.dumps(measured._asdict()), flush=True)


def read(line: str) -> Measured:
    return Measured(**json.loads(line))
