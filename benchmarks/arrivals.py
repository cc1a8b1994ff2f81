"""Measures training-free arrivals per second against the number of clients.

The runs use FedRAW with a buffer of 10 and ten labels: each of two rare labels is on two slow
clients, and each common label on two thirds of all clients. `set up` is the time before the first
arrivals: drawing data and clients, and handing out the model. The rate is the median over stretches
of 1,000 arrivals on one core, with and without the event log. The median excludes checkpoints, to
which a long run gives at most a fiftieth of its time.
Run: make bench
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from benchmarks.machine import headline

from fedraw.data.catalog import Histogram, labels_only
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec

CLIENTS = (30, 100, 1_000, 10_000, 100_000, 1_000_000)
EVENTS = 40_000
STRETCH = 1_000
REPEATS = 3  # one for large federations, whose set-up takes long


class Measured(NamedTuple):
    """One measurement."""

    set_up: float  # seconds
    rate: float  # arrivals per second in the median stretch
    best: float  # arrivals per second in the fastest stretch, when no other process runs


def scene(clients: int) -> tuple[Spec, Parts]:
    """Return the spec and the data of a federation of this size."""
    histogram = Histogram({str(label): max(clients, 300) for label in range(10)})
    spec = Spec.from_dict(
        {
            "partition": {
                "clients": clients,
                "rare_labels": [8, 9],
                "clients_per_common_label": clients * 2 // 3,
            },
            "training": {"kind": "none"},
            "run": {"events": EVENTS, "seeds": [1]},
        }
    )
    return spec, Parts(data=labels_only("ten labels", histogram, np.random.default_rng(0)))


def measure(clients: int, folder: Path | None) -> Measured:
    """Run a federation with the log in this folder, or without a log."""
    spec, parts = scene(clients)
    times: list[tuple[int, float]] = []

    def record(event: int) -> None:
        times.append((event, time.perf_counter()))

    begin = time.perf_counter()
    run_seed(spec, 1, folder, parts, Options(progress=record, force=True))
    _, first = times[0]
    marks = [moment for event, moment in times[:-1] if event % STRETCH == 0]
    stretches = [after - before for before, after in pairwise(marks)]
    return Measured(first - begin, STRETCH / median(stretches), STRETCH / min(stretches))


def rates(runs: list[Measured]) -> str:
    """Return the median and the best rate of the runs as text."""
    return f"{median(m.rate for m in runs):>9,.0f} ({max(m.best for m in runs):>7,.0f})"


def main() -> None:
    print(headline())
    print("arrivals per second, median (best); cost per arrival relative to 30 clients (median)")
    print(f"{'clients':>10} {'set up':>9} {'log off':>19} {'log on':>19} {'cost':>7}")
    first = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for clients in CLIENTS:
            repeats = REPEATS if clients <= 10_000 else 1
            off = [measure(clients, None) for _ in range(repeats)]
            on = [measure(clients, Path(folder)) for _ in range(repeats)]
            rate = median(m.rate for m in off)
            first = first or rate
            set_up = min(m.set_up for m in off)
            print(
                f"{clients:>10,} {set_up:>7.2f} s {rates(off)} {rates(on)} x {first / rate:>5.2f}"
            )


if __name__ == "__main__":
    main()
