"""Compares one file per update with an append-only journal and with group commit.

file      the server's way: a new file with a checksum, fsync, rename, fsync of the folder
append    the same bytes and checksum appended to one file, fdatasync
group 4   append with one fdatasync for four updates, which all wait for the last one

The times are seconds per update in copies of the model (`vector.copy()`), as medians over rounds in
which all variants alternate.

Run: python -m benchmarks.journal [--rounds 8]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.machine import headline

from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.server.journal import ArrivalFacts, Journal

SIZES = (100_000, 11_699_112)
FACTS = ArrivalFacts(0.0, 0, 1.0, 1.0)


class AppendJournal:
    """A journal in one file, with an fdatasync for each group of updates."""

    def __init__(self, path: Path, group: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._group, self._count = group, 0

    def write(self, vector: Vector) -> None:
        """Append the checksum and the bytes of a vector."""
        data = vector.data.cast("B")
        self._file.write(zlib.crc32(data).to_bytes(4, "little"))
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._count += 1
        if self._count % self._group == 0:
            os.fdatasync(self._file.fileno())
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def restart(self) -> None:
        """Empty the file, so that the disk does not fill."""
        os.ftruncate(self._file.fileno(), 0)


def seconds(job: Callable[[], object], times: int) -> float:
    """Return the mean seconds of the job."""
    start = time.perf_counter()
    for _ in range(times):
        job()
    return (time.perf_counter() - start) / times


def measure(folder: Path, size: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each variant for models of this size."""
    vector = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    journal = Journal(folder / "updates")
    appended = {group: AppendJournal(folder / f"journal-{group}", group) for group in (1, 4)}
    update = Update("north", 0, vector, 10)
    found: dict[str, list[float]] = {"copy": [], "file": [], "append": [], "group 4": []}
    for number in range(rounds):
        write_file = partial(journal.write, number % 4, update, FACTS)
        found["copy"].append(seconds(vector.copy, 4))
        found["file"].append(seconds(write_file, 1))
        found["append"].append(seconds(partial(appended[1].write, vector), 1))
        found["group 4"].append(seconds(partial(appended[4].write, vector), 4))
        for append_journal in appended.values():
            append_journal.restart()
    return {name: median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    print(headline())
    print("| numbers | file | append | group 4 |\n|--:|--:|--:|--:|")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), size, options.rounds)
        cells = (f"{found[name] / found['copy']:.1f}" for name in ("file", "append", "group 4"))
        print(f"| {size:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
