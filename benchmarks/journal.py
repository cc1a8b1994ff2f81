"""What an append-only journal with group commit would save over one file per update.

file      as the server does it: a new file, its checksum, fsync, rename, fsync of the folder
append    the same bytes and checksum at the end of one growing file, fdatasync
group 4   append, with one fdatasync for four updates: each of them waits for the last one

Seconds per update, in copies of the model (`vector.copy()`); medians of interleaved rounds.

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


class Appended:
    """A journal in one file."""

    def __init__(self, path: Path, group: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._group, self._count = group, 0

    def write(self, vector: Vector) -> None:
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
        """Begin a new segment, so that the disk does not fill."""
        os.ftruncate(self._file.fileno(), 0)


def seconds(work: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def measure(folder: Path, size: int, rounds: int) -> dict[str, float]:
    vector = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    journal = Journal(folder / "updates")
    appended = {group: Appended(folder / f"journal-{group}", group) for group in (1, 4)}
    update = Update("north", 0, vector, 10)
    found: dict[str, list[float]] = {"copy": [], "file": [], "append": [], "group 4": []}
    for number in range(rounds):
        write_file = partial(journal.write, number % 4, update, FACTS)
        found["copy"].append(seconds(vector.copy, 4))
        found["file"].append(seconds(write_file, 1))
        found["append"].append(seconds(partial(appended[1].write, vector), 1))
        found["group 4"].append(seconds(partial(appended[4].write, vector), 4))
        for one in appended.values():
            one.restart()
    return {name: median(own) for name, own in found.items()}


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
