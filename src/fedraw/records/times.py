"""Read how often each client's updates come: from measured times, or from a log of arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedraw.core.types import SHORTEST_TIME, Floats, Ints
from fedraw.errors import BadInput
from fedraw.records import cells
from fedraw.records.event_lines import is_event_log, open_event_log
from fedraw.records.files import require_file
from fedraw.records.intervals import poisson_interval, student_quantiles
from fedraw.records.measurements import Measurements, read_measurements
from fedraw.records.opening import open_table
from fedraw.records.table_file import TableFile, listed, missing_column, positions
from fedraw.records.timestamps import Clock

# Seconds since 1970 reach this in the year 5138, milliseconds did in 1973.
_MILLISECONDS_FROM = 1e11


@dataclass(frozen=True, eq=False)
class Times:
    """Mean seconds between two updates of a client, in the order of the clients asked for."""

    seconds: Floats
    low: Floats  # 95 % interval of the mean; the mean itself where it is not known
    high: Floats
    arrivals: Ints | None  # arrivals or measurements of each client; None: one plain value each
    notes: tuple[str, ...]


def read_times(path: Path, clients: Sequence[str]) -> Times:
    """The columns client,seconds or client,timestamp, or fedraw's own events.jsonl."""
    file = _open(path)
    if "seconds" in file.header and "timestamp" in file.header:
        raise BadInput(f"{path}: has both columns 'seconds' and 'timestamp'; remove one of them")
    if "timestamp" in file.header:
        client, value = positions(file, ("client", "timestamp"))
        read = read_measurements(file, (client, value), clients, Clock().seconds)
        return _from_log(path, clients, read)
    if "seconds" not in file.header and "client" in file.header:
        raise _neither(file)
    client, value = positions(file, ("client", "seconds"))
    read = read_measurements(file, (client, value), clients, cells.seconds)
    return _from_values(path, clients, read)


def _open(path: Path) -> TableFile:
    require_file(path)
    return open_event_log(path) if is_event_log(path) else open_table(path)


def _neither(file: TableFile) -> BadInput:
    told = str(missing_column(file, "seconds", ("client",)))
    return BadInput(f"{told} (or give the timestamp of every arrival in a column 'timestamp')")


def _from_values(path: Path, clients: Sequence[str], read: Measurements) -> Times:
    n = np.bincount(read.row, minlength=len(clients))
    missing = [clients[i] for i in np.flatnonzero(n == 0).tolist()]
    if missing:
        has = (
            "1 client of the label table has"
            if len(missing) == 1
            else (f"{len(missing)} clients of the label table have")
        )
        raise BadInput(f"{path}: {has} no time: {listed(missing)}; add a row for each")
    mean = np.bincount(read.row, weights=read.value, minlength=len(clients)) / n
    if (n == 1).all():
        return Times(mean, mean, mean, None, ())
    spread = np.exp(_relative_margin(read, mean, n))
    single = [clients[i] for i in np.flatnonzero(n == 1).tolist()]
    notes = (f"the interval of a single measurement is not known: {listed(single)}",)
    return Times(mean, mean / spread, mean * spread, n, notes if single else ())


def _relative_margin(read: Measurements, mean: Floats, n: Ints) -> Floats:
    """Student's margin of the mean's logarithm, so that no interval reaches below zero."""
    squares = (read.value - mean[read.row]) ** 2
    free = np.maximum(n - 1, 1)
    variance = np.bincount(read.row, weights=squares, minlength=len(n)) / free
    return np.asarray(student_quantiles(free) * np.sqrt(variance / n) / mean, np.float64)


def _from_log(path: Path, clients: Sequence[str], read: Measurements) -> Times:
    """Memoryless arrivals, watched from the first to the last of the log: rate n / window."""
    if len(read.value) < 2:
        raise BadInput(
            f"{path}: a rate needs two arrivals or more, there is {len(read.value)}; "
            "let the log run on"
        )
    window = float(read.value.max() - read.value.min())
    if window == 0:
        raise BadInput(
            f"{path}: all {len(read.value)} timestamps are equal, so no time passes between "
            "arrivals; log them more finely"
        )
    if window < SHORTEST_TIME:
        raise BadInput(
            f"{path}: all {len(read.value)} timestamps lie within {window:g} seconds; log them in "
            "a larger unit"
        )
    n = np.bincount(read.row, minlength=len(clients))
    low, high = poisson_interval(n)
    # Nobody's rate is 0. After no arrival in the window, Jeffreys' prior leaves Gamma(1/2, window)
    # for the rate, whose mean is 0.5 / window.
    seconds = window / np.where(n > 0, n, 0.5)
    longest = np.divide(window, low, out=np.full(len(n), np.inf), where=low > 0)
    notes = _never([clients[i] for i in np.flatnonzero(n == 0).tolist()]) + _units(read.value)
    return Times(seconds, window / high, longest, n, notes)


def _never(absent: Sequence[str]) -> tuple[str, ...]:
    if not absent:
        return ()
    named = (
        f"client {absent[0]!r}"
        if len(absent) == 1
        else (f"{len(absent)} clients ({listed(absent)})")
    )
    return (f"no arrival of {named} in the log: twice its length is assumed between two of them",)


def _units(timestamps: Floats) -> tuple[str, ...]:
    if timestamps.max() < _MILLISECONDS_FROM:
        return ()
    return ("the timestamps look like milliseconds but are read as seconds; only ratios hold",)
