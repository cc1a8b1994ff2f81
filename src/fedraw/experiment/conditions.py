"""The sections [availability], [losses] and [membership], and what they mean for one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.settings import positive, whole
from fedraw.errors import BadInput, error_context
from fedraw.experiment.sections import check_types
from fedraw.simulation.arrivals import Drawn
from fedraw.simulation.availability import (
    Diurnal,
    OnlineProcess,
    RecordedAvailability,
    Renewal,
    TiedTo,
    online_shares,
    read_intervals,
)
from fedraw.simulation.flights import Flights, LossLaw
from fedraw.simulation.loop import MembershipChanges
from fedraw.simulation.membership import Change, next_leave, random_changes, read_changes
from fedraw.strategies.protocol import Joined, Left

if TYPE_CHECKING:
    from fedraw.experiment.clients import Clients
    from fedraw.experiment.costs import ClientCosts
    from fedraw.experiment.spec import Spec

# The default of a key that only one kind has.
DEFAULT_ZONES = 24


@dataclass(frozen=True)
class Availability:
    """When clients are online; see docs/how-to/availability.md.

    Args:
        kind: "exponential": phases of random lengths. "diurnal": a part of every day. "trace": as a
            file says. "always".
        online: The share of the time for which a client is online.
        tied_to: "labels": clients with a rare label have `rare_online` instead. "speed": slower
            clients are online less, in proportion.
        rare_online: With "labels": the share of clients with a rare label.
        cycle: The mean seconds of an online and an offline phase together; the length of a day.
        zones: With "diurnal": the number of time zones.
        trace: With "trace": a table with the columns client, start and end.
        after_trace: What follows its last end: the trace again, or the end of the run.
        interrupted: A client that goes offline while it trains goes on when it is back ("pause"),
            or loses its work and is handed the model anew ("lose").

    """

    kind: Literal["always", "exponential", "diurnal", "trace"] = "exponential"
    online: float = 0.5
    tied_to: TiedTo = "nothing"
    rare_online: float | None = None
    cycle: float = 20.0
    zones: int | None = None
    trace: str | None = None
    after_trace: Literal["repeat", "stop"] | None = None
    interrupted: Literal["pause", "lose"] = "pause"

    def __post_init__(self) -> None:
        check_types(self, "availability")
        for key, kind, default in (
            ("zones", "diurnal", DEFAULT_ZONES),
            ("trace", "trace", None),
            ("after_trace", "trace", "repeat"),
        ):
            value = getattr(self, key)
            if value is not None and self.kind != kind:
                raise BadInput(
                    f"availability.{key} goes with kind = {kind!r}, not with {self.kind!r}"
                )
            if value is None and self.kind == kind:
                if default is None:
                    raise BadInput(f"availability.{key} is missing; kind = {kind!r} needs it")
                object.__setattr__(self, key, default)
        if (self.rare_online is None) == (self.tied_to == "labels"):
            raise BadInput(
                "availability.rare_online goes with tied_to = 'labels': give both or neither"
            )
        if self.tied_to != "nothing" and self.kind in ("always", "trace"):
            raise BadInput(
                f"availability.tied_to = {self.tied_to!r} sets shares, and kind = {self.kind!r} "
                "has none; leave it out"
            )
        for key in ("online", "rare_online"):
            value = getattr(self, key)
            if value is not None and not 0 < value <= 1:
                raise BadInput(f"availability.{key} = {value} must be above 0 and at most 1")
        positive("availability.cycle", self.cycle)
        if self.zones is not None:
            whole("availability.zones", self.zones)


@dataclass(frozen=True)
class Losses:
    """Updates that are lost on the way.

    Args:
        lost: The probability that an update never reaches the server. Its client is handed the
            model anew.

    """

    lost: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, "losses")
        if not 0 <= self.lost < 1:
            raise BadInput(f"losses.lost = {self.lost} must be from 0 to below 1")


@dataclass(frozen=True)
class Membership:
    """Clients that join or leave during the run.

    Args:
        joining: The share of the clients that join during the run.
        leaving: The share of the clients that leave during the run.
        within: The virtual seconds within which they do.
        trace: Instead of the others: a table with the columns client, time and change ("joined" or
            "left"), or the event log of a server.

    """

    joining: float = 0.0
    leaving: float = 0.0
    within: float | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        check_types(self, "membership")
        for key in ("joining", "leaving"):
            value = getattr(self, key)
            if not 0 <= value <= 1:
                raise BadInput(f"membership.{key} = {value} must be from 0 to 1")
        drawn = self.joining > 0 or self.leaving > 0
        if self.trace is not None and (drawn or self.within is not None):
            raise BadInput(
                "membership.trace says who joins and leaves, and joining, leaving and within draw "
                "it; leave one of them out"
            )
        if drawn and self.within is None:
            raise BadInput(
                "membership.within is missing; give the virtual seconds within which clients join "
                "and leave"
            )
        if self.within is not None:
            positive("membership.within", self.within)


def member_changes(spec: Spec, clients: Clients, streams: Streams) -> list[Change]:
    """Return who joins and leaves during a run; empty if all clients stay."""
    wanted = spec.membership
    if wanted is None:
        return []
    if wanted.trace is not None:
        return read_changes(Path(wanted.trace), clients.table.clients)
    return random_changes(
        len(clients.table),
        wanted.joining,
        wanted.leaving,
        wanted.within or 0.0,
        streams.generator("membership"),
    )


def founders(table: LabelTable, changes: Sequence[Change]) -> LabelTable:
    """Return the part of the table that is there from the start."""
    first: dict[int, Change] = {}
    for change in changes:
        first.setdefault(change.client, change)
    late = [client for client, change in first.items() if change.kind == "joined"]
    if not late:
        return table
    there = np.ones(len(table), np.bool_)
    there[late] = False
    return table.select(np.flatnonzero(there))


def members_of(table: LabelTable, changes: Sequence[Change]) -> MembershipChanges | None:
    """Return the joins and leaves as the loop takes them; None if there are none."""
    if not changes:
        return None
    joining = sorted({change.client for change in changes if change.kind == "joined"})
    counts = table.select(np.array(joining, np.int64)).counts() if joining else {}
    names = table.clients
    return MembershipChanges(
        names,
        [
            (time, Joined(names[i], counts[names[i]]) if kind == "joined" else Left(names[i]))
            for time, i, kind in changes
        ],
    )


def flights_of(
    spec: Spec,
    clients: Clients,
    changes: Sequence[Change],
    streams: Streams,
    costs: ClientCosts | None = None,
) -> Flights | None:
    """Return what keeps clients from training and updates from arriving, or None."""
    availability, losses = spec.availability, spec.losses
    process = None if availability is None else _process(availability, clients, streams)
    law = None
    if losses is not None:
        every = np.ones(len(clients.table))
        uniform = Drawn(every, streams, lambda rng, n: rng.random(n), "losses")
        law = LossLaw(uniform, losses.lost)
    leaves = next_leave(changes) if changes else None
    if process is None and law is None and leaves is None and costs is None:
        return None
    why = "no client comes online again"
    if availability is not None and availability.after_trace == "stop":
        why = (
            "the trace of availability.trace has ended (after_trace = 'repeat' would start it "
            "again): no client comes online"
        )
    interrupted = "pause" if availability is None else availability.interrupted
    transfer = None if costs is None else costs.transfer
    return Flights(process, interrupted, law, leaves, transfer, why)


def _process(wanted: Availability, clients: Clients, streams: Streams) -> OnlineProcess | None:
    if wanted.kind == "always":
        return None
    if wanted.kind == "trace":
        intervals = read_intervals(Path(wanted.trace or ""))
        with error_context(f"availability.trace: {wanted.trace}"):
            repeat = wanted.after_trace == "repeat"
            return RecordedAvailability(clients.table.clients, intervals, repeat=repeat)
    rare = sorted(clients.rare)
    shares = online_shares(wanted.online, clients.seconds, rare, wanted.rare_online, wanted.tied_to)
    if wanted.kind == "diurnal":
        rng = streams.generator("availability")
        return Diurnal(shares, wanted.cycle, wanted.zones or DEFAULT_ZONES, rng)
    return Renewal(shares, wanted.cycle, streams)
