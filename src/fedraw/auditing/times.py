"""Reads the clients' mean times: from measured times, or from a log of arrivals."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedraw.auditing.label_counts import with_clients
from fedraw.core.intervals import poisson_interval, student_quantiles
from fedraw.core.text import several
from fedraw.core.types import LONGEST_TIME, SHORTEST_TIME, Floats, Ints
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, Chain, is_cut_off, require_one_file
from fedraw.eventlog.records import ArrivalRecord
from fedraw.storage.tables import (
    Row,
    TableFile,
    UnreadableCell,
    head,
    open_bytes,
    open_table,
    parse_number,
    parse_seconds,
    quoted,
    read_errors,
    require_file,
    require_text,
)

# Seconds since 1970 reach this in the year 5138; milliseconds did in 1973.
_MILLISECONDS_FROM = 1e11
_REMEDY = "write seconds as a number from 0 on, or ISO 8601 such as 2026-01-31T08:00:00Z"
_KINDS = {"number": "a number", "zone": "ISO 8601 with a zone", "local": "ISO 8601 without a zone"}


@dataclass(frozen=True, eq=False)
class MeanTimes:
    """Mean seconds between two updates of a client, in the order of the given clients."""

    seconds: Floats
    low: Floats  # 95 % interval of the mean; the mean itself if the interval is unknown
    high: Floats
    arrivals: Ints | None  # arrivals or measurements per client; None: one plain value each
    notes: tuple[str, ...]
    from_arrivals: bool = False  # whether the times include the time that clients were offline


def read_times(path: Path, clients: Sequence[str]) -> MeanTimes:
    """Read a table with the columns client,seconds or client,timestamp, or an event log.

    The path of an event log may be that of its folder.
    """
    if (path / LOG).is_file():
        path /= LOG
    require_file(path)
    file = _open_event_log(path) if _is_event_log(path) else with_clients(open_table(path))
    if "seconds" in file.header and "timestamp" in file.header:
        raise BadInput(f"{path}: has both columns 'seconds' and 'timestamp'; remove one of them")
    if "timestamp" in file.header:
        return _from_log(path, clients, _read(file, "timestamp", clients, Timestamps().parse))
    if "seconds" not in file.header and "client" in file.header:
        raise BadInput(
            f"{file.missing_column('seconds', ('client',))} "
            "(or give the timestamp of every arrival in a column 'timestamp')"
        )
    return _from_values(path, clients, _read(file, "seconds", clients, parse_seconds))


def read_shares(path: Path, clients: Sequence[str]) -> dict[str, float]:
    """Read the share of the time for which each client is online: the columns client,online."""
    known, shares = set(clients), dict[str, float]()
    table = with_clients(open_table(path))
    column = table.positions(("client", "online"), extra_columns=True)[0]
    for place, name, share in table.client_values("online", parse_share, extra_columns=True):
        if name not in known:
            raise table.cell_error(
                place, column, f"{quoted(name)} is not in the label counts; remove the row"
            )
        if name in shares:
            raise table.cell_error(place, column, f"{quoted(name)} has a row already; keep one")
        shares[name] = share
    missing = next((name for name in clients if name not in shares), None)
    if missing is not None:
        raise BadInput(f"{path}: client {missing!r} has no row; add one for every client")
    return shares


def parse_share(text: str) -> float:
    """Parse a share of the time.

    >>> parse_share("0.25")
    0.25
    """
    remedy = "write a number above 0 and at most 1"
    value = parse_number(text.strip(" \t"), f"a share; {remedy}")
    if not 0 < value <= 1:
        raise UnreadableCell(f"{quoted(text)} is not a share of the time; {remedy}")
    return value


class Timestamps:
    """Parses the timestamps of one file, which must all be of the same kind.

    >>> timestamps = Timestamps()
    >>> later = timestamps.parse("2026-01-31T08:00:01+01:00")
    >>> later - timestamps.parse("2026-01-31T07:00:00Z")
    1.0
    """

    def __init__(self) -> None:
        self.kind = ""

    def parse(self, text: str) -> float:
        """Return seconds from a number, or from ISO 8601 with or without a zone."""
        text = text.strip(" \t")
        kind, value = self._kind_and_value(text)
        if self.kind and kind != self.kind:
            raise UnreadableCell(
                f"{quoted(text)} is {_KINDS[kind]}, but the first timestamp is "
                f"{_KINDS[self.kind]}; use one kind for all"
            )
        self.kind = kind
        return value

    @staticmethod
    def _kind_and_value(text: str) -> tuple[str, float]:
        if not (text[:4].isdigit() and text[4:5] == "-"):
            value = parse_number(text, f"a timestamp; {_REMEDY}")
            if not 0 <= value <= LONGEST_TIME:
                raise UnreadableCell(f"{quoted(text)} is negative or too large; {_REMEDY}")
            return "number", value
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise UnreadableCell(f"{quoted(text)} is not a timestamp; {_REMEDY}") from None
        if moment.tzinfo is not None:
            return "zone", moment.timestamp()
        # Only differences matter, and the local time zone must not change them.
        return "local", moment.replace(tzinfo=UTC).timestamp()


def _is_event_log(path: Path) -> bool:
    """Return whether the file is an event log, by its name or its first bytes."""
    return path.suffix == ".jsonl" or head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _open_event_log(path: Path) -> TableFile:
    """Open an event log as a table of clients and timestamps."""
    require_text(path)
    return TableFile(
        path,
        ("client", "timestamp"),
        "line",
        rows=lambda: _log_rows(path),
    )


def _log_rows(path: Path) -> Iterator[Row]:
    """Yield the arrivals of an event log; an incomplete last line is skipped, as by `read_log`."""
    chain = Chain()
    require_one_file(path)
    with read_errors(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if is_cut_off(line):
                break
            record = chain.decode(line, path)
            if isinstance(record, ArrivalRecord):
                yield number, (str(record.client), repr(record.time))


class _Measurements(NamedTuple):
    """The position of the client and the value of each row."""

    row: Ints
    value: Floats


def _read(
    file: TableFile, column: str, clients: Sequence[str], parse: Callable[[str], float]
) -> _Measurements:
    """Read all rows; every client of the file must be known."""
    known = {name: i for i, name in enumerate(clients)}
    row, values = array("q"), array("d")
    unknown: dict[str, int] = {}
    for place, name, value in file.client_values(column, parse):
        position = known.get(name, -1)
        if position < 0:
            unknown.setdefault(name, place)
        row.append(position)
        values.append(value)
    if unknown:
        named = several((f"{name!r} ({file.place} {place})" for name, place in unknown.items()), 10)
        has = "client has" if len(unknown) == 1 else "clients have"
        raise BadInput(
            f"{file.path}: {len(unknown)} {has} no label counts: {named}; "
            "remove the rows, or add the counts to the label table"
        )
    return _Measurements(np.array(row, np.int64), np.array(values, np.float64))


def _from_values(path: Path, clients: Sequence[str], read: _Measurements) -> MeanTimes:
    n = np.bincount(read.row, minlength=len(clients))
    missing = [repr(clients[i]) for i in np.flatnonzero(n == 0).tolist()]
    if missing:
        has = "client" if len(missing) == 1 else "clients"
        raise BadInput(
            f"{path}: {len(missing)} {has} of the label table without a time: "
            f"{several(missing, 10)}; add a row for each"
        )
    mean = np.bincount(read.row, weights=read.value, minlength=len(clients)) / n
    if (n == 1).all():
        return MeanTimes(mean, mean, mean, None, ())
    spread = np.exp(_relative_margin(read, mean, n))
    single = [repr(clients[i]) for i in np.flatnonzero(n == 1).tolist()]
    notes = (f"a single measurement has no interval: {several(single, 10)}",) if single else ()
    return MeanTimes(mean, mean / spread, mean * spread, n, notes)


def _relative_margin(read: _Measurements, mean: Floats, n: Ints) -> Floats:
    """Return Student's margin of the log of the mean, which keeps intervals above zero."""
    squares = (read.value - mean[read.row]) ** 2
    free = np.maximum(n - 1, 1)
    variance = np.bincount(read.row, weights=squares, minlength=len(n)) / free
    return np.asarray(student_quantiles(free) * np.sqrt(variance / n) / mean, np.float64)


def _from_log(path: Path, clients: Sequence[str], read: _Measurements) -> MeanTimes:
    """Estimate the rates of memoryless arrivals as n / window, the time span of the log."""
    if len(read.value) < 2:
        raise BadInput(
            f"{path}: a rate needs at least two arrivals, and there is {len(read.value)}; "
            "let the log run longer"
        )
    window = float(read.value.max() - read.value.min())
    if window == 0:
        raise BadInput(
            f"{path}: all {len(read.value)} timestamps are equal, so no time passes between "
            "arrivals; log them with a finer resolution"
        )
    if window < SHORTEST_TIME:
        raise BadInput(
            f"{path}: all {len(read.value)} timestamps are within {window:g} seconds; log them in "
            "a larger unit"
        )
    n = np.bincount(read.row, minlength=len(clients))
    low, high = poisson_interval(n)
    # No client has a rate of 0. With no arrival in the window, Jeffreys' prior gives
    # Gamma(1/2, window) for the rate, whose mean is 0.5 / window.
    seconds = window / np.where(n > 0, n, 0.5)
    longest = np.divide(window, low, out=np.full(len(n), np.inf), where=low > 0)
    notes: tuple[str, ...] = ()
    absent = [repr(clients[i]) for i in np.flatnonzero(n == 0).tolist()]
    if absent:
        many = f"{len(absent)} clients ({several(absent, 10)})"
        named = f"client {absent[0]}" if len(absent) == 1 else many
        notes = (
            f"the log has no arrival of {named}; a mean time of twice the log's length is assumed",
        )
    if read.value.max() >= _MILLISECONDS_FROM:
        notes += (
            "the timestamps look like milliseconds but are read as seconds; only ratios are right",
        )
    return MeanTimes(seconds, window / high, longest, n, notes, from_arrivals=True)
