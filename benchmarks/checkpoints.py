"""What a checkpoint costs: size on disk and time to write, for FedRAW with 30 clients and K = 10.

Run: make bench
"""

from __future__ import annotations

import os
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.eventlog.log_file import Position
from fedraw.experiment.checkpoints import EVERY_SECONDS, LARGEST_SHARE, Checkpoints
from fedraw.simulation.arrivals import poisson
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Setup

CLIENTS = 30


def simulation(size: int) -> Simulation:
    """A federation with every client in flight from a model of its own."""
    table = LabelTable.from_counts({i: {"a": 3, f"b{i % 10}": 1} for i in range(CLIENTS)})
    law = poisson(np.ones(CLIENTS), Streams(0))

    def train(job: Job) -> TrainingResult:
        return TrainingResult(job.model + np.float32(0.01), 1)

    running = Simulation(FedRAW(), Setup(np.zeros(size, np.float32), table), law, Inline(train))
    for _ in range(4 * CLIENTS):
        running.step()
    return running


def main() -> None:
    print(f"{date.today()}, {os.cpu_count()} cores")
    print(f"{'parameters':>12} {'MB':>9} {'models':>8} {'ms':>9} {'share of the time':>18}")
    for size in (4_810, 1_000_000, 11_200_000):
        running = simulation(size)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Checkpoints(Path(folder))
            begun = time.perf_counter()
            checkpoints.write(running, Position())
            seconds = time.perf_counter() - begun
            stored = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        interval = max(EVERY_SECONDS, seconds / LARGEST_SHARE)
        share = seconds / (interval + seconds)
        models = stored / (4 * size)
        print(
            f"{size:>12,} {stored / 1e6:>9.1f} {models:>8.1f} {seconds * 1e3:>9.0f} {share:>18.2%}"
        )


if __name__ == "__main__":
    main()
