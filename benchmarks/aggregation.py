"""What an arrival costs the server, in copies of the model vector.

One copy is `vector.copy()`: into fresh memory, as a new model is. Copying into memory that is there
already (`np.copyto`) is shown beside it. All are measured in turn, many times over, and compared by
their medians, so that a busy moment of the machine hits all alike.

step        FedRAW.step as a server runs it: check, buffer, weights, new model
no check    the same without looking for NaN and infinity
running     RunningSum.add alone: one vector in, one out, a new model
direct      what it replaces: all K slots summed anew
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
    """Seconds of each job, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            begun = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - begun)
    return {name: median(own[1:]) for name, own in times.items()}


def federation(vectors: list[Vector], buffer: int) -> Callable[[], None]:
    """A server whose buffer is full; each call is one more arrival, of a client not in it."""
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
    def run() -> None:
        with patch.object(fedraw, "check"):
            arrive()

    return run


def large(buffer: int) -> None:
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


def small(size: int, slots: int) -> None:
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
        large(buffer)
    print(f"\n{'parameters':>12} {'slots':>6} {'running':>10} {'direct':>10}   (in copies)")
    for size in SIZES:
        for slots in SLOTS:
            small(size, slots)


if __name__ == "__main__":
    main()
