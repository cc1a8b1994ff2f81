"""Aggregating on an arrival: running sum against direct sum, in copies of the vector.

Both are measured in one run, interleaved, as multiples of copying the vector once.
Run: make bench
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import date
from statistics import median

import numpy as np

from fedraw.core.aggregation import RunningSum, Term

SIZES = (4_810, 100_000, 1_000_000, 11_200_000)
SLOTS = (1, 2, 3, 4, 5, 10, 40)


def seconds(job: Callable[[], object], budget: float = 0.25) -> float:
    job()
    times: list[float] = []
    while sum(times) < budget:
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return median(times)


def measure(size: int, slots: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    vectors = [rng.random(size, np.float32) for _ in range(slots + 1)]
    total = RunningSum.zeros(size)
    everything: list[Term] = [(0.1, vector) for vector in vectors[:slots]]
    swap: list[Term] = [(0.1, vectors[0]), (-0.1, vectors[-1])]

    def running() -> None:
        total.add(swap, divisor=2.0)

    def direct() -> None:
        total.clear()
        total.add(everything, divisor=2.0)

    copy = seconds(vectors[0].copy)
    return seconds(running) / copy, seconds(direct) / copy


def main() -> None:
    print(f"{date.today()}, {os.cpu_count()} cores, {platform.processor() or platform.machine()}")
    print(f"{'parameters':>12} {'slots':>6} {'running':>9} {'direct':>9}   (copies of the vector)")
    for size in SIZES:
        for slots in SLOTS:
            running, direct = measure(size, slots)
            print(f"{size:>12,} {slots:>6} {running:>9.1f} {direct:>9.1f}")


if __name__ == "__main__":
    main()
