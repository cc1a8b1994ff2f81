"""Measures rarity scores against the number of clients, which hold ten of 1,000 labels each.

`table` checks and sorts the counts, and `scores` computes S of every client. Both should be linear
in the number of clients: the last column is the time per client relative to the smallest
federation.
Run: make bench
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
from benchmarks.machine import headline

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.core.types import Ints

LABELS = 1_000
HELD = 10
CLIENTS = (1_000, 10_000, 100_000, 1_000_000)


def columns(clients: int, rng: np.random.Generator) -> Ints:
    """Return ten different labels for each client, evenly spaced from a random first one."""
    first = rng.integers(LABELS, size=(clients, 1))
    step = rng.integers(1, LABELS // HELD, size=(clients, 1))
    return np.asarray((first + step * np.arange(HELD)) % LABELS, np.int64).ravel()


def measure(clients: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds to make the table and to compute the scores."""
    rng = np.random.default_rng(0)
    rows, held = np.repeat(np.arange(clients), HELD), columns(clients, rng)
    counts = rng.integers(1, 100, rows.size)
    tables, scores = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        table = LabelTable.from_entries(range(clients), range(LABELS), rows, held, counts)
        built = time.perf_counter()
        rarity_scores(table)
        tables.append(built - start)
        scores.append(time.perf_counter() - built)
    return median(tables), median(scores)


def main() -> None:
    print(headline())
    print(f"{'clients':>10} {'table':>12} {'scores':>12}   (per client, relative to the smallest)")
    first = 0.0
    for clients in CLIENTS:
        table, scores = measure(clients, 9 if clients < 1_000_000 else 3)
        each = (table + scores) / clients
        first = first or each
        times = f"{1000 * table:>9.1f} ms {1000 * scores:>9.1f} ms"
        print(f"{clients:>10,} {times}   x {each / first:.2f}")


if __name__ == "__main__":
    main()
