"""The state of each client according to an event log."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from fedraw.core.types import ClientId
from fedraw.eventlog.records import (
    ArrivalRecord,
    JoinedRecord,
    LeftRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
)

# training     has received a model and not replied yet
# waiting      has replied, and receives the next model when its round closes
# back-off     has failed, and is asked again later
# quarantined  is excluded for a time
# away         has left
SiteState = Literal["training", "waiting", "back-off", "quarantined", "away"]
STATES: tuple[SiteState, ...] = get_args(SiteState)
# A server's note about a site that it asks again after a pause.
_BACK_OFF = re.compile(r"asked again (?:in (\d+) s|later): ")


class SiteStatus(NamedTuple):
    """The state of one client at one time; times are in the log's time."""

    client: ClientId
    state: SiteState
    arrivals: int
    rejected: int
    heard: float | None  # when its last update arrived
    silent: float  # seconds since then, or since it joined
    staleness: float | None  # mean over its updates, in events
    last_staleness: int | None
    until: float | None  # the end of a back-off or quarantine
    reason: str  # why it left, or why it is asked again


@dataclass
class _Site:
    joined: float
    present: bool = True
    arrivals: int = 0
    rejected: int = 0
    heard: float | None = None
    stale_sum: int = 0
    last_stale: int | None = None
    back_off: bool = False
    until: float | None = None
    reason: str = ""


class Sites:
    """Tracks the state of every client, record by record."""

    def __init__(self) -> None:
        self.back_off = 0.0  # seconds of a pause whose note has no duration
        self._sites: dict[ClientId, _Site] = {}
        self._waiting: set[ClientId] = set()

    def observe(self, record: Record) -> None:
        """Add the next record of the log."""
        match record:
            case ArrivalRecord():
                self._arrived(record)
            case RejectedRecord():
                site = self._of(record.client, record.time)
                site.rejected += 1
                site.heard = record.time
            case JoinedRecord():
                site = self._of(record.client, record.time)
                site.joined, site.present = record.time, True
                self._ask_again(site)
            case LeftRecord():
                site = self._of(record.client, record.time)
                site.present, site.back_off = False, False
                site.until, site.reason = record.until, record.reason
                self._waiting.discard(record.client)
            case NoteRecord(client=client, reason=reason) if client in self._sites:
                if found := _BACK_OFF.match(reason):
                    site = self._sites[client]
                    pause = float(found[1]) if found[1] else self.back_off
                    site.back_off, site.until, site.reason = True, record.time + pause, reason
            case RestartedRecord():  # the server asks all sites again
                for site in self._sites.values():
                    if site.present:
                        self._ask_again(site)

    def _arrived(self, record: ArrivalRecord) -> None:
        site = self._sites.get(record.client) or self._of(record.client, record.time)
        site.arrivals += 1
        site.heard = record.time
        site.stale_sum += record.staleness_events
        site.last_stale = record.staleness_events
        if site.back_off:
            self._ask_again(site)
        if record.aggregated:
            self._waiting.clear()
        elif not record.buffer:  # the buffer of a round is empty until the round closes
            self._waiting.add(record.client)

    def _of(self, client: ClientId, time: float) -> _Site:
        return self._sites.setdefault(client, _Site(time))

    def _ask_again(self, site: _Site) -> None:
        site.back_off, site.until, site.reason = False, None, ""

    def counts(self, now: float) -> dict[SiteState, int]:
        """Return the number of clients in each state."""
        found = Counter(self._state(client, site, now) for client, site in self._sites.items())
        return {state: found[state] for state in STATES}

    def statuses(self, now: float) -> list[SiteStatus]:
        """Return all clients that ever took part, in the order in which they joined."""
        return [self._status(client, site, now) for client, site in self._sites.items()]

    def _status(self, client: ClientId, site: _Site, now: float) -> SiteStatus:
        last = site.joined if site.heard is None else max(site.heard, site.joined)
        state = self._state(client, site, now)
        active = state in ("back-off", "quarantined")
        return SiteStatus(
            client,
            state,
            site.arrivals,
            site.rejected,
            site.heard,
            max(0.0, now - last),
            site.stale_sum / site.arrivals if site.arrivals else None,
            site.last_stale,
            site.until if active else None,
            site.reason if active or state == "away" else "",
        )

    def _state(self, client: ClientId, site: _Site, now: float) -> SiteState:
        due = site.until is not None and site.until > now
        if not site.present:
            return "quarantined" if due else "away"
        if site.back_off and due:
            return "back-off"
        return "waiting" if client in self._waiting else "training"
