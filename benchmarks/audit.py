"""Measures the audit of up to a million clients: reading, prediction and memory.

    python -m benchmarks.audit [--clients 1000000]

Each size runs in a separate process, because peak memory is measured per process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from benchmarks.machine import headline

from fedraw.auditing.label_counts import read_label_counts
from fedraw.auditing.prediction import audit
from fedraw.auditing.times import read_times

LABELS = 1000
ROWS_PER_CLIENT = 10
MEASURE = "from benchmarks.audit import measure; measure()"


def write(folder: Path, clients: int) -> None:
    """Write a long table with ten labels per client, and times over two orders of magnitude."""
    rng = np.random.default_rng(0)
    step = 100_000
    with (folder / "labels.csv").open("w") as labels, (folder / "times.csv").open("w") as times:
        labels.write("client,label,count\n")
        times.write("client,seconds\n")
        for first in range(0, clients, step):
            count = min(step, clients - first)
            # Each client has ten different labels; popular labels are drawn far more often.
            start = (LABELS * rng.random(count) ** 3).astype(int)
            stride = rng.integers(1, LABELS // ROWS_PER_CLIENT, count)
            column = (start[:, None] + stride[:, None] * np.arange(ROWS_PER_CLIENT)) % LABELS
            number = rng.integers(1, 200, column.shape)
            seconds = np.exp(rng.normal(0, 1, count))
            labels.writelines(
                f"client-{first + i},label-{c},{n}\n"
                for i in range(count)
                for c, n in zip(column[i], number[i], strict=True)
            )
            times.writelines(f"client-{first + i},{seconds[i]:.4f}\n" for i in range(count))


def measure() -> None:
    """Print the seconds of each step and the peak memory of this process as JSON."""
    clock, folder = [time.perf_counter()], Path(sys.argv[1])
    table = read_label_counts(folder / "labels.csv").table
    clock.append(time.perf_counter())
    times = read_times(folder / "times.csv", list(map(str, table.clients)))
    clock.append(time.perf_counter())
    found = audit(table, times.seconds)
    clock.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    steps = dict(zip(("labels", "times", "prediction"), np.diff(clock).tolist(), strict=True))
    print(json.dumps({**steps, "gigabytes": peak, "recommendation": str(found.recommendation)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    most = parser.parse_args().clients
    print(headline())
    print(f"{'clients':>9} {'rows':>11} {'file':>7} {'labels':>8} {'times':>7} "
          f"{'prediction':>10} {'all':>7} {'memory':>7}")  # fmt: skip
    totals = []
    for clients in (most // 100, most // 10, most):
        with TemporaryDirectory() as folder:
            write(Path(folder), clients)
            size = (Path(folder) / "labels.csv").stat().st_size / 1e6
            command = [sys.executable, "-c", MEASURE, folder]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        steps = [found[step] for step in ("labels", "times", "prediction")]
        totals.append(sum(steps))
        print(f"{clients:9,} {clients * ROWS_PER_CLIENT:11,} {size:4.0f} MB {steps[0]:6.1f} s "
              f"{steps[1]:5.1f} s {steps[2]:8.2f} s {totals[-1]:5.1f} s "
              f"{found['gigabytes']:4.1f} GB")  # fmt: skip
    print(f"ten times the clients take {totals[1] / totals[0]:.1f} and {totals[2] / totals[1]:.1f} "
          "times as long")  # fmt: skip


if __name__ == "__main__":
    main()
