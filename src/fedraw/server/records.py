"""The records that a server writes to its event log: those of a simulation, and some more.

note        something an operator may want to know: overdue, quarantined, refused at the door
scores      rarity scores before and after a site came, went or declared new counts
restarted   the server was away, for how long, and whom it asks again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from fedraw.core.text import one_line
from fedraw.core.update import Update
from fedraw.disk.event_log import FORMAT, Record
from fedraw.server.journal import Flight
from fedraw.strategies.protocol import State

# A change in a federation of more sites logs the score of the changed site only: the scores of all
# sites at each of many changes would make the log grow with the square of their number.
MOST_SCORES = 50
# Characters of a reason in the log; much of it may be a site's own words.
LONGEST_REASON = 500


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
        # A user's own strategy may have weights that JSON does not know.
        "weights": [w if isfinite(w) else None for w in contents.weights] if aggregated else [],
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


def short(text: str) -> str:
    """One printable line of at most LONGEST_REASON characters, or a little more once escaped."""
    kept = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    return one_line(kept)


def scored(state: State, site: str) -> list[str]:
    """Whose scores a change of `site` logs: all members', or only its own if they are many."""
    federation = state.federation
    members = [str(member) for member in federation] if len(federation) <= MOST_SCORES else []
    return list(dict.fromkeys([*members, site]))


def scores_of(state: State, sites: Sequence[str]) -> dict[str, float]:
    """The rarity scores of those sites that are members."""
    federation = state.federation
    return {site: federation.score(site) for site in sites if site in federation}
