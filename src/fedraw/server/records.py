"""The records that a server writes to its event log about arrivals and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from fedraw.core.text import one_line
from fedraw.core.update import Update
from fedraw.eventlog.records import ArrivalRecord, RejectedRecord, ScoresRecord
from fedraw.server.journal import Flight
from fedraw.strategies.protocol import State

# A change in a federation of more sites logs the score of the changed site only: the scores of all
# sites at each of many changes would make the log grow with the square of their number.
MOST_SCORES = 50
# Characters of a reason in the log; much of it may be a site's own words.
LONGEST_REASON = 500


def arrival_record(
    event: int, update: Update, flight: Flight, before: int, state: State
) -> ArrivalRecord:
    """What an update did; `before` is the version that it met."""
    contents, aggregated = state.contents, state.version > before
    return ArrivalRecord(
        event=event,
        time=flight.time,
        client=update.client,
        start_time=flight.start_time,
        start_version=update.start_version,
        version=state.version,
        staleness_events=event - flight.start_event,
        staleness_versions=before - update.start_version,
        aggregated=aggregated,
        buffer=list(contents.clients),
        # JSON has no number for a weight of a user's own strategy that is not finite.
        weights=[w if isfinite(w) else None for w in contents.weights] if aggregated else [],
        norm=flight.norm,
    )


def rejected_record(
    event: int,
    time: float,
    site: str,
    start_time: float,
    reason: str,
    norm: float | None = None,
) -> RejectedRecord:
    """Why an update was refused, in few words."""
    return RejectedRecord(
        event=event,
        time=time,
        client=site,
        start_time=start_time,
        reason=short(reason),
        norm=norm,
    )


def scores_record(
    event: int, time: float, cause: str, before: Mapping[str, float], after: Mapping[str, float]
) -> ScoresRecord:
    """The scores that differ before and after a change of members."""
    changed = [site for site in {**before, **after} if before.get(site) != after.get(site)]
    return ScoresRecord(
        event=event,
        time=time,
        cause=cause,
        before={site: before.get(site) for site in changed},
        after={site: after.get(site) for site in changed},
    )


def short(text: str) -> str:
    """One printable line of at most LONGEST_REASON characters, or a little more once escaped."""
    kept = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    return one_line(kept)


def scored(state: State, site: str) -> list[str]:
    """The sites whose scores a change of `site` logs: all members, or only `site` among many."""
    federation = state.federation
    members = [str(member) for member in federation] if len(federation) <= MOST_SCORES else []
    return list(dict.fromkeys([*members, site]))


def scores_of(state: State, sites: Sequence[str]) -> dict[str, float]:
    """The rarity scores of those sites that are members."""
    federation = state.federation
    return {site: federation.score(site) for site in sites if site in federation}
