"""One measurement as a line of JSON, in the same form for every simulator."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import NamedTuple

import torch
from benchmarks.peers.spent import Spent


class Measured(NamedTuple):
    """One measurement."""

    peer: str
    variant: str
    job: str
    cores: int
    updates: int  # the number of updates that reached the server in the timed part
    steps: int  # the number of SGD steps in the timed part
    seconds: float
    cpu: float  # CPU seconds of all cores
    peak_mb: int
    versions: dict[str, str]
    note: str

    @property
    def per_step(self) -> float:
        """Wall-clock seconds per SGD step."""
        return self.seconds / self.steps

    @property
    def cpu_per_step(self) -> float:
        """CPU seconds per SGD step."""
        return self.cpu / self.steps


def print_result(
    peer: str,
    given: object,
    *,
    updates: int,
    steps: int,
    spent: Spent,
    packages: tuple[str, ...] = (),
    note: str = "",
) -> None:
    """Print the measurement as JSON; `given` is the result of `job.arguments`."""
    arguments = vars(given)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions |= {name: metadata.version(name) for name in packages}
    measured = Measured(
        peer=peer,
        variant=arguments["variant"],
        job=arguments["job"],
        cores=arguments["cores"],
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
    """Read a line of JSON."""
    return Measured(**json.loads(line))
