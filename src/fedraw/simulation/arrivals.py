"""Arrival laws: how long client i's n-th training lasts, in virtual seconds.

A law is a pure function of the seed, the client and the number of the training. So all methods of
one seed meet the same clients at the same times, and a resumed run needs no generator.

`poisson` is the default and the paper's law. It has no memory: the next arrival is client i with
probability proportional to 1/s_i, whoever came before. Deduplication matters only if clients repeat
within a buffer; with fixed or jittered durations they hardly ever do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedraw.core.randomness import Purpose, Streams
from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats
from fedraw.errors import BadInput, error_context
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import ArrivalRecord, JoinedRecord, RejectedRecord
from fedraw.storage.tables import open_table, parse_seconds

# Recorded training times of each client, in seconds, by the client's name as text.
Trace = Mapping[str, Sequence[float]]


class ArrivalLaw(Protocol):
    """Says how long each training of each client lasts."""

    def duration(self, client: int, training: int) -> float:
        """Seconds of a training; `client` is a position, `training` counts from 0."""
        ...


class Drawn:
    """Each client's mean time, times a random factor for each of its trainings.

    The factors of all clients' n-th trainings are one row from the stream (purpose, n), because
    making a generator costs more than a draw. A row is dropped once all clients have used it.
    """

    def __init__(
        self,
        mean_seconds: Floats,
        streams: Streams,
        factors: Callable[[np.random.Generator, int], Floats],
        purpose: Purpose = "arrivals",
    ) -> None:
        self._mean = mean_seconds
        self._purpose = purpose
        self._streams = streams
        self._factors = factors
        self._rows: dict[int, Floats] = {}
        self._unused: dict[int, int] = {}

    def duration(self, client: int, training: int) -> float:
        """Seconds of a training."""
        row = self._rows.get(training)
        if row is None:
            rng = self._streams.generator(self._purpose, training)
            row = self._rows[training] = self._mean * self._factors(rng, self._mean.size)
            self._unused[training] = self._mean.size
        unused = self._unused[training] = self._unused[training] - 1
        if not unused:
            del self._rows[training], self._unused[training]
        return row.item(client)


def poisson(mean_seconds: Floats, streams: Streams) -> Drawn:
    """Exponential durations with the client's mean: arrivals without memory."""
    return Drawn(mean_seconds, streams, lambda rng, n: rng.standard_exponential(n))


def jitter(mean_seconds: Floats, streams: Streams, spread: float = 0.2) -> Drawn:
    """Uniform durations within ± `spread` of the client's mean."""
    if not 0 <= spread < 1:
        raise BadInput(f"speeds.jitter = {spread} must be from 0 to below 1")
    return Drawn(mean_seconds, streams, lambda rng, n: rng.uniform(1 - spread, 1 + spread, n))


class Fixed:
    """Every training of a client takes its mean time."""

    def __init__(self, mean_seconds: Floats) -> None:
        self._mean = mean_seconds

    def duration(self, client: int, training: int) -> float:
        """Seconds of a training."""
        return float(self._mean[client])


class Recorded:
    """Durations recorded in a real federation; each client repeats its own from the beginning."""

    def __init__(self, clients: Sequence[ClientId], durations: Trace) -> None:
        check_trace(clients, durations)
        self._durations = [durations[str(client)] for client in clients]

    def duration(self, client: int, training: int) -> float:
        """Seconds of a training."""
        own = self._durations[client]
        return own[training % len(own)]


def check_trace(
    clients: Sequence[ClientId], trace: Mapping[str, Sequence[Any]], what: str = "duration"
) -> None:
    """Refuse a trace that lacks a client, or that has one which does not take part."""
    missing = [client for client in clients if not trace.get(str(client))]
    if missing:
        raise BadInput(
            f"the trace has no {what} of client {missing[0]!r} "
            f"({len(missing)} of {len(clients)} clients are missing); record every client"
        )
    known = set(map(str, clients))
    unknown = [client for client in trace if client not in known]
    if unknown:
        raise BadInput(
            f"the trace has {what}s of {unknown[0]!r}, which is no client of this federation "
            f"(its clients: {several(map(str, clients))}); rename it, or leave its rows out"
        )


def sites_of(path: Path) -> list[str]:
    """Return the clients of an event log, in the order in which they joined."""
    records = read_log(path)
    return list(dict.fromkeys(str(r.client) for r in records if isinstance(r, JoinedRecord)))


def stand_ins(path: Path, clients: Sequence[ClientId]) -> dict[str, str]:
    """Return the simulated client that stands for each site of an event log, by the site's name.

    Simulated clients are often numbers. If there are as many as sites, and no site is called like
    one of them, they stand for the sites in the order in which the sites joined. Otherwise every
    site stands for itself; a table stands for itself too.
    """
    if path.suffix != ".jsonl" or list(clients) != list(range(len(clients))):
        return {}
    sites = sites_of(path)
    if {str(client) for client in clients} & set(sites):
        return {}
    if len(sites) != len(clients):
        raise BadInput(
            f"{path} has {len(sites)} sites ({several(sites)}), and this federation has "
            f"{len(clients)} clients; set partition.clients = {len(sites)}"
        )
    return {site: str(client) for site, client in zip(sites, clients, strict=True)}


def read_trace(path: Path, clients: Sequence[ClientId] = ()) -> dict[str, list[float]]:
    """Durations per client from a table `client,seconds`, or from an event log (`.jsonl`).

    In an event log, a training lasts from the hand-out of the model to the arrival of the update.
    For `clients`, see `stand_ins`.
    """
    durations: dict[str, list[float]] = {}
    with error_context("speeds.trace"):
        rows = _log_rows(path) if path.suffix == ".jsonl" else _table_rows(path)
        for client, seconds in rows:
            durations.setdefault(client, []).append(seconds)
        names = stand_ins(path, clients) if clients else {}
        durations = {names.get(client, client): own for client, own in durations.items()}
    if not durations:
        raise BadInput(
            f"speeds.trace: {path} has no durations; expected a table with the columns "
            "client,seconds"
        )
    return durations


def _table_rows(path: Path) -> Iterator[tuple[str, float]]:
    rows = open_table(path).client_values("seconds", parse_seconds, extra_columns=True)
    return ((client, seconds) for _, client, seconds in rows)


def _log_rows(path: Path) -> Iterator[tuple[str, float]]:
    for number, record in enumerate(read_log(path), start=1):
        if not isinstance(record, ArrivalRecord | RejectedRecord):
            continue
        try:
            seconds = float(record.time) - float(record.start_time)
        except OverflowError:
            raise BadInput(
                f"{path}, line {number}: its time or start_time is too large a number"
            ) from None
        if not 0 < seconds < float("inf"):
            raise BadInput(
                f"{path}, line {number}: {seconds} seconds is not a duration; it must be above 0"
            )
        yield str(record.client), seconds
