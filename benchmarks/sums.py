"""Measures what one pass costs: the size of a message, summing samples, and solving the head.

The times are those of the processor, because they are less disturbed by other jobs than the time
that passes. Solving uses one thread. The last column is the memory that solving takes at most.
Run: make bench, or python -m benchmarks.sums 64 512 8192 for other widths
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np
from benchmarks.machine import headline
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.core.linear_head import LinearHead
from fedraw.core.sums import SumsShape

LABELS = 10
WIDTHS = (64, 512, 2048)
SAMPLES = 1000


def measure(width: int) -> tuple[int, float, float, float]:
    """Return the bytes of a message, the seconds of both steps, and the memory of the second."""
    rng, shape = np.random.default_rng(0), SumsShape(LABELS, width)
    features = rng.normal(size=(SAMPLES, width)).astype(np.float32)
    labels = rng.integers(0, LABELS, SAMPLES)
    start = time.process_time()
    message = shape.of_samples(features, labels)
    summed, before = time.process_time(), resident()
    LinearHead().solve(shape, message)
    solved = time.process_time()
    most = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return message.nbytes, summed - start, solved - summed, max(0.0, most - before)


def resident() -> float:
    """Return the bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


def main(widths: tuple[int, ...]) -> None:
    """Print a row for each width."""
    print(headline())
    print(f"{'features':>8} {'message':>12} {'summing 1,000':>14} {'solving':>9} {'memory':>9}")
    with threadpool_limits(1, "blas"):
        for width in widths:
            size, summed, solved, most = measure(width)
            print(
                f"{width:>8,} {size / 1e6:>9.2f} MB {summed:>12.3f} s {solved:>7.3f} s "
                f"{most / 1e6:>6.0f} MB"
            )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or WIDTHS)
