"""What the sections [availability], [losses] and [membership] mean for one seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.errors import error_context
from fedraw.simulation.arrivals import Drawn
from fedraw.simulation.availability import (
    Diurnal,
    OnlineProcess,
    RecordedAvailability,
    Renewal,
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
    from fedraw.experiment.sections import Availability
    from fedraw.experiment.spec import Spec


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
    if wanted.zones is not None:  # kind = "diurnal"
        rng = streams.generator("availability")
        return Diurnal(shares, wanted.cycle, wanted.zones, rng)
    return Renewal(shares, wanted.cycle, streams)
