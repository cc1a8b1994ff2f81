"""Availability: when each client is online, in virtual time.

A process is a pure function of the seed, the client and the time, like an arrival law. So all
methods of one seed meet the same clients at the same times, and a resumed run needs no generator.
Setting up a process is vectorised over the clients; a client that is never asked for costs nothing
more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedraw.core.randomness import Streams
from fedraw.core.types import ClientId, Floats, Ints
from fedraw.errors import BadInput, error_context
from fedraw.simulation.arrivals import check_trace
from fedraw.storage.tables import UnreadableCell, open_table, parse_name, parse_number, quoted

# What decides how much of the time a client is online.
TiedTo = Literal["nothing", "labels", "speed"]

# When each client is online, by the client's name as text: pairs of a start and an end.
Intervals = Mapping[str, Sequence[tuple[float, float]]]

# Phases of one client that are drawn at a time.
_BLOCK = 16


class Phase(NamedTuple):
    """Whether a client is online, and the end of this phase; infinite if it never ends."""

    online: bool
    until: float


class OnlineProcess(Protocol):
    """Says when clients are online."""

    def phase(self, client: int, time: float) -> Phase:
        """Return the phase of the client at this position; its times never go back."""
        ...


def online_shares(
    online: float,
    seconds: Floats,
    rare: Sequence[int] = (),
    rare_online: float | None = None,
    tied_to: TiedTo = "nothing",
) -> Floats:
    """Return the share of the time for which each client is online.

    nothing  `online` for everyone
    labels   `rare_online` for clients with a rare label, `online` for the others
    speed    `online` for the client of median speed, less for slower ones in proportion to their
             mean training time, more for faster ones, and at most 1

    >>> online_shares(0.5, np.array([1.0, 2.0, 8.0]), tied_to="speed")
    array([1.   , 0.5  , 0.125])
    """
    shares = np.full(seconds.size, float(online))
    if tied_to == "labels":
        if not len(rare):
            raise BadInput(
                "availability.tied_to = 'labels' needs clients with rare labels, and there are "
                "none; name partition.rare_labels, or use 'nothing'"
            )
        shares[list(rare)] = rare_online
    elif tied_to == "speed":
        shares = np.minimum(1.0, online * np.median(seconds) / seconds)
    return shares


class Renewal:
    """Clients that go on and off at random: phases of independent lengths, in a steady state.

    The lengths are exponentially distributed.

    Args:
        shares: The share of the time for which each client is online.
        cycle: The mean length of an online and an offline phase together, in seconds.
        streams: The random streams of the run.

    """

    def __init__(self, shares: Floats, cycle: float, streams: Streams) -> None:
        self._streams = streams
        self._cycle = cycle
        self._shares = shares
        rng = streams.generator("availability")
        self._online: npt.NDArray[np.bool_] = rng.random(shares.size) < shares
        # A phase that holds at a random moment is longer than others: its length is gamma
        # distributed. The moment lies anywhere in it.
        rest = rng.gamma(2.0, size=shares.size) * rng.random(shares.size) * cycle
        rest *= np.where(self._online, shares, 1 - shares)
        self._until: Floats = np.where(shares == 1.0, math.inf, rest)
        self._drawn: dict[int, Iterator[float]] = {}

    def phase(self, client: int, time: float) -> Phase:
        """Return the phase of a client."""
        until = self._until.item(client)
        if time < until:
            return Phase(self._online.item(client), until)
        online, share = self._online.item(client), self._shares.item(client)
        lengths = self._drawn.get(client)
        if lengths is None:
            lengths = self._drawn[client] = self._lengths(client)
        while until <= time:
            online = not online
            until += next(lengths) * (share if online else 1 - share)
        self._online[client], self._until[client] = online, until
        return Phase(online, until)

    def _lengths(self, client: int) -> Iterator[float]:
        """Return the lengths of a client's phases after the first, as if each were a cycle."""
        block = 0
        while True:
            rng = self._streams.generator("availability", client, block)
            drawn = rng.standard_exponential(_BLOCK) * self._cycle
            yield from drawn.tolist()
            block += 1


class Diurnal:
    """Clients that are online for a part of every day, each in its time zone.

    Args:
        shares: The share of each day for which each client is online.
        day: The length of a day in seconds.
        zones: The number of time zones, from which each client's is drawn.
        rng: Draws the time zones.

    """

    def __init__(self, shares: Floats, day: float, zones: int, rng: np.random.Generator) -> None:
        self._day = day
        self._online = shares * day
        self._shift = rng.integers(zones, size=shares.size) * (day / zones)

    def phase(self, client: int, time: float) -> Phase:
        """Return the phase of a client."""
        day, shift, online = self._day, self._shift.item(client), self._online.item(client)
        dawn = math.floor((time + shift) / day) * day - shift
        while dawn + day <= time:  # rounding
            dawn += day
        if online >= day:
            return Phase(True, math.inf)
        return Phase(True, dawn + online) if time < dawn + online else Phase(False, dawn + day)


class RecordedAvailability:
    """Clients that are online as a trace says.

    Args:
        clients: The clients of the federation.
        intervals: When each of them is online.
        repeat: Whether the trace starts again after its last end; otherwise nobody is online then.

    """

    def __init__(self, clients: Sequence[ClientId], intervals: Intervals, *, repeat: bool) -> None:
        check_intervals(clients, intervals)
        own = [sorted(intervals[str(client)]) for client in clients]
        self._first: Ints = np.cumsum([0, *map(len, own)])
        self._start: Floats = np.array([start for one in own for start, _ in one])
        self._end: Floats = np.array([end for one in own for _, end in one])
        self._period = float(self._end.max()) if repeat else math.inf

    def phase(self, client: int, time: float) -> Phase:
        """Return the phase of a client."""
        period = self._period
        laps = math.floor(time / period) if period < math.inf else 0
        begun = laps * period if laps else 0.0
        if begun + period <= time:  # rounding
            begun += period
        first, last = self._first.item(client), self._first.item(client + 1)
        place = first + int(np.searchsorted(self._end[first:last], time - begun, side="right"))
        # Adding the lap may round to the time itself; then the next interval counts.
        while place < last and begun + self._end.item(place) <= time:
            place += 1
        if place == last:
            again = begun + period + self._start.item(first)
            if again > time:
                return Phase(False, again)
            return Phase(True, begun + period + self._end.item(first))
        start = begun + self._start.item(place)
        return Phase(True, begun + self._end.item(place)) if start <= time else Phase(False, start)


def check_intervals(clients: Sequence[ClientId], intervals: Intervals) -> None:
    """Refuse a trace that lacks a client, has an unknown one, or has overlapping intervals."""
    check_trace(clients, intervals, "interval")
    for client, own in intervals.items():
        ordered = sorted(own)
        for (start, end), (later, _) in pairwise(ordered):
            if later < end:
                raise BadInput(
                    f"client {client!r} is online from {start:g} to {end:g} and again from "
                    f"{later:g}: the intervals overlap; join them"
                )


def read_intervals(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Read when each client is online from a table with the columns `client,start,end`."""
    intervals: dict[str, list[tuple[float, float]]] = {}
    with error_context("availability.trace"):
        table = open_table(path)
        columns = {"client": parse_name, "start": parse_time, "end": parse_time}
        for place, (client, start, end) in table.parsed(columns):
            if not start < end:
                raise BadInput(f"{table.at(place)}: the end {end:g} is not after the start")
            intervals.setdefault(client, []).append((start, end))
        if not intervals:
            raise BadInput(f"{path} has no intervals; expected rows of client,start,end")
    return intervals


def parse_time(text: str) -> float:
    """Parse a moment of virtual time: seconds from 0 on.

    >>> parse_time(" 2.5")
    2.5
    """
    remedy = "write a number of seconds, at least 0"
    value = parse_number(text.strip(" \t"), f"a time; {remedy}")
    if not 0 <= value < math.inf:
        raise UnreadableCell(f"{quoted(text)} is not from 0 on and finite; {remedy}")
    return value
