"""The course of a run in few numbers: who is in the buffer, with which weight, how stale.

The events of a run are divided into `BINS` bins, so a course is small however long the log is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedraw.core.types import ClientId
from fedraw.eventlog.records import (
    ArrivalRecord,
    DeclaredRecord,
    JoinedRecord,
    LeftRecord,
    Record,
    StartRecord,
)
from fedraw.eventlog.summary import held

BINS = 24
# Events per bin of a log that does not say how many events are wanted.
WIDTH_WITHOUT_END = 100


class Point(NamedTuple):
    """One bin: shares in percent; None without an aggregation, or without weights."""

    event: float  # the middle of the bin
    end: float  # its last event
    presence: float | None  # of aggregations with a rare client in the buffer
    rare_clients: float | None  # in the buffer of an aggregation, mean
    largest: float | None  # weight of the client that weighs most, mean
    rare_weight: float | None  # of all rare clients together, mean


@dataclass
class _Bin:
    aggregations: int = 0
    with_rare: int = 0
    rare_clients: int = 0
    weighed: int = 0
    largest: float = 0.0
    rare_weight: float = 0.0


class Course:
    """Takes in the records of a log one by one, as `RunSummary` does."""

    def __init__(self) -> None:
        self.samples: dict[ClientId, int] = {}  # of all clients that ever took part
        self.attacker: ClientId | None = None
        self.rare_staleness: Counter[int] = Counter()
        self.common_staleness: Counter[int] = Counter()
        self._rare_labels: frozenset[str] = frozenset()
        self._rare: set[ClientId] = set()
        self._any_rare = False
        self._width = float(WIDTH_WITHOUT_END)
        self._last: int | None = None
        self._cached = False
        self._members: set[ClientId] = set()
        self._heard: set[ClientId] = set()  # members whose update is cached
        self._bins: defaultdict[int, _Bin] = defaultdict(_Bin)

    def observe(self, record: Record) -> None:
        """Take in the next record of the log."""
        match record:
            case ArrivalRecord():
                rare = record.client in self._rare
                stale = self.rare_staleness if rare else self.common_staleness
                stale[record.staleness_events] += 1
                if record.aggregated:
                    self._aggregate(record)
            case StartRecord():
                self._begin(record)
            case JoinedRecord():
                self._members.add(record.client)
                self._hold(record.client, record.counts)
            case DeclaredRecord(counts=counts) if counts is not None:
                self._hold(record.client, counts)
            case LeftRecord():
                self._members.discard(record.client)
                self._heard.discard(record.client)

    def _hold(self, client: ClientId, counts: Mapping[str, int]) -> None:
        self.samples[client] = sum(counts.values())
        if self._rare_labels.isdisjoint(held(counts)):
            self._rare.discard(client)
        else:
            self._rare.add(client)
            self._any_rare = True

    def _begin(self, start: StartRecord) -> None:
        self._rare_labels = frozenset(start.rare_labels)
        self.attacker = start.attacker
        self._cached = start.influence == "cache"
        wanted = start.events
        if wanted is not None and wanted > 0:
            self._width = max(1.0, wanted / BINS)
            self._last = min(BINS, wanted) - 1

    def _aggregate(self, arrival: ArrivalRecord) -> None:
        buffer = arrival.buffer
        number = int((arrival.event - 1) / self._width)
        # A round that is under way at the last event is finished; that belongs to the last bin.
        own = self._bins[number if self._last is None else min(number, self._last)]
        present = self._rare.intersection(buffer)
        own.aggregations += 1
        own.with_rare += bool(present)
        own.rare_clients += len(present)
        by_client = self._weigh(buffer, arrival.weights)
        if by_client:
            own.weighed += 1
            own.largest += max(by_client.values())
            own.rare_weight += sum(by_client[client] for client in self._rare & by_client.keys())

    def _weigh(
        self, buffer: Sequence[ClientId], weights: Sequence[float | None]
    ) -> Mapping[ClientId, float]:
        if self._cached:  # the last update of everyone heard so far is part of every step
            self._heard.update(self._members.intersection(buffer))
            return dict.fromkeys(self._heard, 1 / max(1, len(self._members)))
        by_client: defaultdict[ClientId, float] = defaultdict(float)
        for client, weight in zip(buffer, weights, strict=False):
            by_client[client] += weight or 0.0
        return by_client

    @property
    def rare(self) -> Collection[ClientId]:
        """Clients that hold a rare label, by their latest counts; also those that have left."""
        return self._rare

    def points(self) -> list[Point]:
        """One point for each bin up to the last aggregation."""
        if not self._bins:
            return []
        return [self._point(number) for number in range(max(self._bins) + 1)]

    def _point(self, number: int) -> Point:
        own = self._bins.get(number, _Bin())
        count, weighed = own.aggregations, own.weighed
        return Point(
            event=(number + 0.5) * self._width,
            end=(number + 1) * self._width,
            presence=100 * own.with_rare / count if count and self._any_rare else None,
            rare_clients=own.rare_clients / count if count and self._any_rare else None,
            largest=100 * own.largest / weighed if weighed else None,
            rare_weight=100 * own.rare_weight / weighed if weighed and self._any_rare else None,
        )


class Spread(NamedTuple):
    """A distribution: `values` are its quantiles at the shares in `QUANTILES`."""

    values: tuple[int, ...]
    mean: float
    updates: int


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def spread_of(counts: Sequence[Mapping[int, int]]) -> Spread | None:
    """The distribution of all seeds together; None if nothing was counted.

    >>> spread_of([{0: 90, 7: 5}, {7: 5}])
    Spread(values=(0, 0, 0, 0, 7, 7), mean=0.7, updates=100)
    """
    total: Counter[int] = Counter()
    for some in counts:
        total.update(some)
    count = total.total()
    if not count:
        return None
    values, before, wanted = [], 0, list(QUANTILES)
    for value in sorted(total):
        before += total[value]
        while wanted and before >= wanted[0] * count - 1e-9:
            values.append(value)
            wanted.pop(0)
    mean = sum(value * times for value, times in total.items()) / count
    return Spread(tuple(values), mean, count)


def share_of(part: Collection[ClientId], samples: Mapping[ClientId, Any]) -> float | None:
    """The share of all samples, in percent, that these clients hold."""
    whole = sum(samples.values())
    return 100 * sum(samples.get(client, 0) for client in part) / whole if whole else None
