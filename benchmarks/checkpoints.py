"""Measures a checkpoint of FedRAW with K = 10: size on disk, time to write and to read.

The first cases have 30 clients and growing models, the others up to a million clients without a
model. All clients are in flight. Times are wall-clock times, with the CPU time of this process in
brackets.
Run: make bench
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.machine import headline

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.eventlog.log_file import Position
from fedraw.experiment.checkpoints import EVERY_SECONDS, LARGEST_SHARE, Checkpoints
from fedraw.simulation.arrivals import poisson
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Setup

CASES = (
    (30, 4_810),
    (30, 1_000_000),
    (30, 11_200_000),
    (10_000, 0),
    (100_000, 0),
    (1_000_000, 0),
)
EVENTS = 20_000  # arrivals before the checkpoint of a federation without a model


def simulation(clients: int, size: int) -> Simulation:
    """Return a federation with every client in flight, most of them with different models."""
    table = LabelTable.from_counts({i: {"a": 3, f"b{i % 10}": 1} for i in range(clients)})
    law = poisson(np.ones(clients), Streams(0))

    def train(job: Job) -> TrainingResult:
        return TrainingResult(job.model + np.float32(0.01), 1)

    running = Simulation(FedRAW(), Setup(np.zeros(size, np.float32), table), law, Inline(train))
    for _ in range(4 * clients if size else EVENTS):
        running.step()
    return running


class Stopwatch:
    """Wall-clock and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return both times, in seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def main() -> None:
    print(headline())
    print(f"{'clients':>10} {'parameters':>12} {'MB':>9} {'write':>16} {'read':>16} {'share':>7}")
    for clients, size in CASES:
        running = simulation(clients, size)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints, watch = Checkpoints(Path(folder)), Stopwatch()
            checkpoints.write(running, Position())
            seconds, cpu = watch.read()
            stored = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
            watch = Stopwatch()
            checkpoints.read(type(running.state))
            read, read_cpu = watch.read()
        share = seconds / (max(EVERY_SECONDS, seconds / LARGEST_SHARE) + seconds)
        print(
            f"{clients:>10,} {size:>12,} {stored / 1e6:>9.1f} {seconds:>7.2f} ({cpu:>4.2f}) s"
            f" {read:>7.2f} ({read_cpu:>4.2f}) s {share:>7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
