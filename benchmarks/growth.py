"""Measures how time and memory grow with the number of clients and with the size of the model.

Each row is a separate process: FedRAW with K = 10, and one epoch on 10 samples of 64 features per
client. All clients are in flight, or 100 of them. `event` is the time of an arrival after the
set-up, including training. `memory` is the growth of the process between its first and its last
arrival, by the models that clients started from and by their updates.
Run: make bench
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np
from benchmarks.machine import headline
from torch import nn

from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec

EVENTS = 2_000
CLIENTS = (30, 300, 3_000, 10_000)
BOUNDED = (100, 1_000, 10_000)
AT_ONCE = 100
HIDDEN = (64, 512, 4_096, 32_768)


class Mlp:
    """A model function for one hidden layer of this width."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden
        self.__name__ = f"mlp-{hidden}"

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        inputs = int(np.prod(input_shape))
        return nn.Sequential(
            nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes)
        )


def data(clients: int) -> Dataset:
    """Return random data with 10 samples per client."""
    rng = np.random.default_rng(0)
    samples = 10 * clients
    return from_arrays(
        rng.random((samples, 64), np.float32),
        np.arange(samples) % 10,
        test_inputs=rng.random((100, 64), np.float32),
        test_labels=np.arange(100) % 10,
    )


def megabytes() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(clients: int, hidden: int, at_once: int) -> None:
    """Print one measurement of this process as JSON."""
    spec = Spec.from_dict(
        {
            "partition": {"kind": "iid", "clients": clients, "local_test": 0},
            "speeds": {"kind": "uniform"},
            "training": {"epochs": 1},
            "run": {
                "events": EVENTS,
                "seeds": [1],
                "evaluate_every": EVENTS,
                "concurrency": at_once,
            },
        }
    )
    log: list[tuple[int, float, float]] = []
    options = Options(progress=lambda event: log.append((event, time.perf_counter(), megabytes())))
    begin = time.perf_counter()
    run_seed(spec, 1, None, Parts(data=data(clients), model=Mlp(hidden)), options)
    (first, start, before), (last, end, after) = log[0], log[-2]
    each = (end - start) / (last - first)
    set_up = start - begin - first * each
    print(json.dumps({"each": each, "set_up": set_up, "grown": after - before}))


def measure_in_process(*row: int) -> dict[str, float]:
    """Run one measurement in a new process, and return it."""
    command = [sys.executable, "-m", "benchmarks.growth", *map(str, row)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(clients: int, hidden: int, first: float | None, at_once: int | None = None) -> float:
    """Print one row, relative to the time of the first one, and return its time per event."""
    at_once = at_once or clients
    found = measure_in_process(clients, hidden, at_once)
    parameters = (64 + 1) * hidden + (hidden + 1) * 10
    ratio = "" if first is None else f"x{found['each'] / first:.2f}"
    per_flight = 1024 * found["grown"] / at_once
    print(
        f"{clients:>8,} {at_once:>9,} {parameters:>11,} {1e3 * found['each']:>9.2f} ms {ratio:>7}"
        f" {found['set_up']:>7.2f} s {found['grown']:>7.1f} MB {per_flight:>8.0f} kB"
        f" {per_flight * 256 / parameters:>7.1f}",
        flush=True,
    )
    return found["each"]


def main() -> None:
    if len(sys.argv) > 1:
        measure(*map(int, sys.argv[1:4]))
        return
    print(headline())
    print(f"{EVENTS:,} events; memory in total, and per client in flight in kB and in models")
    print(
        f"{'clients':>8} {'in flight':>9} {'parameters':>11} {'event':>12} {'':>7} {'set-up':>9}"
        f" {'memory':>10} {'a client':>11}"
    )
    first = show(CLIENTS[0], HIDDEN[0], None)
    for clients in CLIENTS[1:]:
        show(clients, HIDDEN[0], first)
    for clients in BOUNDED:
        show(clients, HIDDEN[0], first, AT_ONCE)
    for hidden in HIDDEN[1:]:
        show(CLIENTS[0], hidden, first)


if __name__ == "__main__":
    main()
