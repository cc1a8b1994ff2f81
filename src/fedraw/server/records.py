"""The records that a server writes to its event log: those of a simulation, and some more.

note        something an operator may want to know: overdue, quarantined, refused at the door
scores      rarity scores before and after a site came, went or declared new counts
restarted   the server was away, for how long, and whom it asks again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.core.update import Update
from fedraw.disk.event_log import FORMAT, Record
from fedraw.server.journal import Flight
from fedraw.strategies.strategy import State

# Of more sites than this, only the score of the one that changed is written.
MOST_SCORES = 1000


def start_record(
    strategy: Mapping[str, Any],
    settings: Mapping[str, Any],
    labels: Sequence[str],
    rare: Sequence[str],
    **facts: Any,
) -> Record:
    """`facts` has the name that tables show, among others; `strategy` has the catalogue's."""
    return {
        "kind": "start",
        "format": FORMAT,
        "name": facts["name"],
        "seed": None,
        "events": settings.get("arrivals"),
        "labels": list(labels),
        "rare_labels": list(rare),
        "notes": [],
        **facts,
        "spec": {"strategy": dict(strategy), "server": dict(settings)},
    }


def arrival_record(event: int, update: Update, flight: Flight, before: int, state: State) -> Record:
    """`before` is the version that the update met."""
    contents, aggregated = state.contents, state.version > before
    return {
        "kind": "arrival",
        "event": event,
        "time": flight.time,
        "client": update.client,
        "start_time": flight.start_time,
        "start_version": update.start_version,
        "version": state.version,
        "staleness_events": event - flight.start_event,
        "staleness_versions": before - update.start_version,
        "aggregated": aggregated,
        "buffer": list(contents.clients),
        "weights": list(contents.weights) if aggregated else [],
        "norm": flight.norm,
    }


def scores_record(
    event: int, time: float, cause: str, before: Mapping[str, float], after: Mapping[str, float]
) -> Record:
    changed = [site for site in {**before, **after} if before.get(site) != after.get(site)]
    return {
        "kind": "scores",
        "event": event,
        "time": time,
        "cause": cause,
        "before": {site: before.get(site) for site in changed},
        "after": {site: after.get(site) for site in changed},
    }


def scores_of(state: State, site: str) -> dict[str, float]:
    """Of every member; of very many, only of the site in question."""
    federation = state.federation
    few = len(federation) <= MOST_SCORES
    members = [m for m in federation if few or m == site]
    return {str(member): federation.score(member) for member in members}
