"""Measures the server's cost of an arrival, in copies of the model vector.

One copy is `vector.copy()`, which allocates new memory, as a new model does. `copyto` copies into
existing memory. All variants are measured alternately, and their medians are compared, so that
other load on the machine affects all of them equally.

step        FedRAW.step as in a server: check, buffer, weights, new model
no check    FedRAW.step without the check for NaN and infinity
running     RunningSum.add alone: one vector added, one removed, a new model
direct      the sum over all K slots, which the running sum replaces
Run: make bench
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from statistics import median
from unittest.mock import patch

import numpy as np
from benchmarks.machine import headline

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.strategies import fedraw
from fedraw.strategies.protocol import Arrived, Setup

LARGE = 11_200_000  # ResNet-18
BUFFERS = (10, 40, 100)
SIZES = (4_810, 100_000, 1_000_000)
SLOTS = (1, 2, 3, 4, 5, 10, 40)
REPEATS = 31


def medians(jobs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each job; the jobs run alternately."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return {name: median(seconds[1:]) for name, seconds in times.items()}


def federation(vectors: list[Vector], buffer: int) -> Callable[[], None]:
    """Return a function that adds an arrival of a client outside the full buffer of a server."""
    clients = len(vectors)
    table = LabelTable.from_counts({i: {"a": 1 + i, f"b{i % 7}": 1} for i in range(clients)})
    strategy = fedraw.FedRAW(buffer=buffer)
    state, _ = strategy.start(Setup(np.zeros_like(vectors[0]), table))
    turn: Iterator[int] = cycle(range(clients))

    def arrive() -> None:
        client = next(turn)
        update = Update(client, state.version, vectors[client], 10)
        strategy.step(state, Arrived(update))

    for _ in range(clients):
        arrive()
    return arrive


def unchecked(arrive: Callable[[], None]) -> Callable[[], None]:
    """Return the same function without the check of the update."""

    def run() -> None:
        with patch.object(fedraw, "check"):
            arrive()

    return run


def measure_large(buffer: int) -> None:
    """Print a row of the table for a large model."""
    rng = np.random.default_rng(0)
    vectors = [rng.random(LARGE, np.float32) for _ in range(buffer + 1)]
    total, existing = RunningSum.zeros(LARGE), np.empty_like(vectors[0])
    swap: list[Term] = [(0.1, vectors[0]), (-0.1, vectors[-1])]
    arrive = federation(vectors, buffer)
    seconds = medians(
        {
            "copy": vectors[0].copy,
            "copyto": lambda: np.copyto(existing, vectors[0]),
            "step": arrive,
            "no check": unchecked(arrive),
            "running": lambda: total.add(swap, divisor=2.0),
        },
        REPEATS,
    )
    everything: list[Term] = [(0.1, vector) for vector in vectors[:buffer]]
    direct = medians({"direct": lambda: total.add(everything, divisor=2.0)}, 3)
    seconds = {**seconds, **direct}
    copies = [seconds[name] / seconds["copy"] for name in seconds if name != "copy"]
    print(
        f"{buffer:>6} {1000 * seconds['copy']:>8.1f} ms"
        + "".join(f"{value:>10.2f}" for value in copies)
    )


def measure_small(size: int, slots: int) -> None:
    """Print a row of the table that compares a running sum with a direct one."""
    rng = np.random.default_rng(0)
    vectors = [rng.random(size, np.float32) for _ in range(slots + 1)]
    total = RunningSum.zeros(size)
    everything: list[Term] = [(0.1, vector) for vector in vectors[:slots]]
    swap: list[Term] = [(0.1, vectors[0]), (-0.1, vectors[-1])]
    seconds = medians(
        {
            "copy": vectors[0].copy,
            "running": lambda: total.add(swap, divisor=2.0),
            "direct": lambda: total.add(everything, divisor=2.0),
        },
        max(REPEATS, 20_000_000 // size // 10),
    )
    running, direct = (seconds[name] / seconds["copy"] for name in ("running", "direct"))
    print(f"{size:>12,} {slots:>6} {running:>10.1f} {direct:>10.1f}")


def main() -> None:
    print(headline())
    names = ("copyto", "step", "no check", "running", "direct")
    print(f"{LARGE:,} parameters, in copies:")
    print(f"{'K':>6} {'one copy':>11}" + "".join(f"{name:>10}" for name in names))
    for buffer in BUFFERS:
        measure_large(buffer)
    print(f"\n{'parameters':>12} {'slots':>6} {'running':>10} {'direct':>10}   (in copies)")
    for size in SIZES:
        for slots in SLOTS:
            measure_small(size, slots)


if __name__ == "__main__":
    main()
