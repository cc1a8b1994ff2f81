"""What the live views ask of the state of a run: its sites, its labels and what happened last.

The dashboard, its metrics and alerts, `fedraw watch` and a server's progress line show these
values. `follow` reads the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from fedraw.core.types import ClientId
from fedraw.eventlog.metrics import label_standing, tail_of
from fedraw.eventlog.records import LeftRecord, NoteRecord, RejectedRecord
from fedraw.eventlog.state import TREND, RunState, Site

# The metrics that every view shows.
SHOWN = ("GlobalAcc", "AvgRare")
# The recall of a label is falling if it drops by at least this many points.
FALLING_BY = 10.0
# A recall below this share of the mean recall is low.
LOW_RECALL = 2 / 3

# Below this standing, a label is at risk or lost under every method, by the audit's thresholds.
LOW_STANDING = 0.1
# Standing is not meaningful before this many aggregations per client.
AGGREGATIONS_PER_CLIENT = 3

Phase = Literal["starting", "running", "stopped", "finished"]

# training     has received a model and not replied yet
# waiting      has replied, and receives the next model when its round closes
# back-off     has failed, and is asked again later
# quarantined  is excluded for a time
# away         has left
SiteState = Literal["training", "waiting", "back-off", "quarantined", "away"]


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


def site_counts(state: RunState, now: float) -> dict[SiteState, int]:
    """Return the number of clients in each state, at `now` in the log's time."""
    found = Counter(_absence(state, c, site, now)[0] for c, site in state.sites.items())
    return {name: found[name] for name in get_args(SiteState)}


def sites(state: RunState, now: float) -> list[SiteStatus]:
    """Return all clients that ever took part, in the order in which they joined."""
    return [_site(state, client, site, now) for client, site in state.sites.items()]


def _site(state: RunState, client: ClientId, site: Site, now: float) -> SiteStatus:
    last = site.joined if site.heard is None else max(site.heard, site.joined)
    name, until, reason = _absence(state, client, site, now)
    return SiteStatus(
        client,
        name,
        site.arrivals,
        state.rejected[str(client)],
        site.heard,
        max(0.0, now - last),
        site.stale_sum / site.arrivals if site.arrivals else None,
        site.last_stale,
        until,
        reason,
    )


def _absence(
    state: RunState, client: ClientId, site: Site, now: float
) -> tuple[SiteState, float | None, str]:
    """Return the state of a site, when it ends if it is a pause, and why it is away or paused."""
    gone, note = state.away.get(client), site.back_off
    if gone is not None:
        if gone.until is not None and gone.until > now:
            return "quarantined", gone.until, gone.reason
        return "away", None, gone.reason
    until = None if note is None else _end_of(note, state)
    if note is not None and until is not None and until > now:
        return "back-off", until, note.reason
    return "waiting" if client in state.waiting else "training", None, ""


def _end_of(note: NoteRecord, state: RunState) -> float:
    """Return the end of a back-off; servers of fedraw 0.2 did not always tell it."""
    if note.until is not None:
        return note.until
    pause = state.start.spec.get("server", {}).get("back_off") if state.start else None
    return note.time + (float(pause) if isinstance(pause, int | float) else 0.0)


class BufferSlot(NamedTuple):
    """An update in the buffer; its weight is None until it is aggregated."""

    client: ClientId
    weight: float | None
    age: int | None  # events since the update arrived
    rare: bool


class Incident(NamedTuple):
    """A refused update, a departure of a site, or a note for the operator."""

    event: int
    client: ClientId | None  # None for a note about no single client
    reason: str


class Restart(NamedTuple):
    """A restart after `gap` seconds without a server, which asked `reasked` sites again."""

    event: int
    gap: float
    reasked: int


@dataclass(frozen=True)
class ServerHistory:
    """The departures, restarts and notes of a real federation; all sequences are newest first."""

    away: tuple[Incident, ...] = ()  # sites that left and have not returned
    changed: int = 0  # sites that joined late, left or declared new labels
    restarts: int = 0
    last_restarts: tuple[Restart, ...] = ()
    notes: int = 0
    quarantined: int = 0  # the number of quarantines
    last_notes: tuple[Incident, ...] = ()  # notes about quarantines come first


class EvaluationPoint(NamedTuple):
    """One evaluation; accuracies and recall are in percent."""

    event: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]
    own: Mapping[str, float | None] = {}  # the user's own metrics


class OwnMetric(NamedTuple):
    """The last value of one of the user's own metrics."""

    metric: str
    source: Literal["evaluation", "training"]
    value: float | None


class LabelTrend(NamedTuple):
    """The recall of one label and its trend."""

    label: str
    rare: bool
    recall: float
    change: float | None  # between the last evaluations and those before
    behind: bool  # far below the mean recall
    falling: bool


RiskReason = Literal["last holder gone", "low standing", "falling recall", "low recall"]


class LabelRisk(NamedTuple):
    """A label that may be lost, and the reasons."""

    label: str
    rare: bool
    reasons: tuple[RiskReason, ...]
    holders: int | None  # members that hold the label now; None if labels are not declared
    last_holder: ClientId | None  # the last holder that left, if there is no holder now
    standing: float | None  # from the influence of its holders so far
    recall: float | None
    change: float | None


@dataclass(frozen=True)
class RunStatus:
    """The status of one run."""

    folder: Path
    name: str
    seed: int | None
    state: Phase
    event: int
    events: int | None  # the number of events to run; None if there is no such limit
    written: float  # the time at which the log last grew, in unix seconds
    quiet: float  # seconds since then
    rate: float | None  # events per second
    seconds_left: float | None
    unread: int  # bytes of the log that are not read yet
    checkpoint: int | None  # the event of the newest checkpoint
    metrics: Mapping[str, float | None]
    is_server: bool = False


@dataclass(frozen=True)
class RunDetail:
    """The details of a run so far, apart from its status."""

    curve: tuple[EvaluationPoint, ...]
    changes: Mapping[str, float | None]  # the trends of GlobalAcc and AvgRare
    mean_recall: float | None
    labels: tuple[LabelTrend, ...]  # lowest recall first
    buffer: tuple[BufferSlot, ...]  # oldest slot first; a client may have renewed its slot
    capacity: int | None
    aggregated_at: int | None  # the event of the last aggregation
    version: int
    clients: int  # the number of clients that ever took part
    rare_clients: tuple[ClientId, ...]
    unheard: tuple[ClientId, ...]  # members without an update so far
    participation: Mapping[str, float | None]
    rejected: Mapping[str, int]
    refusals: tuple[Incident, ...]  # newest first
    doubted: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels, by client
    # The holders of rare labels by label, as inferred from the updates.
    inferred: Mapping[str, Sequence[ClientId]] = field(default_factory=dict)
    members: int | None = None  # the number of clients that take part now
    at_risk: tuple[LabelRisk, ...] = ()  # rare labels first, then labels without holders
    # The number of members that hold each label, and its standing; empty without declared labels.
    holders: Mapping[str, int] = field(default_factory=dict)
    standing: Mapping[str, float] = field(default_factory=dict)
    history: ServerHistory = field(default_factory=ServerHistory)
    training: Mapping[str, float | None] = field(default_factory=dict)  # reported by clients
    # What it took until AvgRare, and each rare label, passed 50 and 80 %; see RunState.reached.
    reached: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def own(self) -> list[OwnMetric]:
        """The user's own metrics: of the last evaluation, then of the clients' training."""
        tested = self.curve[-1].own if self.curve else {}
        return [OwnMetric(name, "evaluation", value) for name, value in tested.items()] + [
            OwnMetric(name, "training", value) for name, value in self.training.items()
        ]


def shown_metrics(state: RunState) -> Mapping[str, float | None]:
    """Return the shown metrics, as the mean of the last five evaluations."""
    tail = tail_of([own.metrics for own in state.tail_evaluations])
    return {key: tail.get(key) for key in SHOWN}


def detail(state: RunState) -> RunDetail:
    """Return the details of a run so far."""
    members = state.members
    heard = {client for client, site in state.sites.items() if site.arrivals}
    trends = tuple(sorted(_trends(state), key=lambda trend: trend.recall))
    held = _holders(state)
    standing = _standing(state, held)
    inferred = state.recent[-1].inferred if state.recent else None
    return RunDetail(
        curve=tuple(
            EvaluationPoint(own.event, own.metrics, own.recall, own.own or {})
            for own in state.evaluations
        ),
        changes={key: _change([e.metrics.get(key) for e in state.recent]) for key in SHOWN},
        mean_recall=_mean([trend.recall for trend in trends]),
        labels=trends,
        buffer=tuple(_slots(state)),
        capacity=state.start.spec.get("strategy", {}).get("buffer") if state.start else None,
        aggregated_at=state.aggregated_at,
        version=state.version,
        clients=len(state.counts),
        rare_clients=tuple(state.rare_clients),
        unheard=tuple(client for client in members if client not in heard),
        participation=state.participation(),
        rejected=dict(state.rejected),
        refusals=_incidents(state.refusals),
        doubted=state.doubted,
        inferred={} if inferred is None else inferred["holders"],
        members=len(members),
        at_risk=tuple(_at_risk(state, trends, held, standing)),
        holders=held,
        standing=standing,
        training=state.training,
        reached=state.reached,
        history=ServerHistory(
            away=_incidents(reversed(state.away.values())),
            changed=len(set().union(*state.changes.values())),
            restarts=state.restarts,
            last_restarts=tuple(
                Restart(own.event, own.gap, len(own.reasked)) for own in state.last_restarts
            ),
            notes=state.notes,
            quarantined=state.quarantines,
            last_notes=(*_incidents(state.last_quarantines), *_incidents(state.last_notes)),
        ),
    )


def _incidents(
    records: Iterable[RejectedRecord | LeftRecord | NoteRecord],
) -> tuple[Incident, ...]:
    return tuple(Incident(own.event, own.client, own.reason) for own in records)


def _holders(state: RunState) -> dict[str, int]:
    """Return how many members hold each label that a client has ever declared."""
    found, table = dict.fromkeys(state.given_up, 0), state.table
    if table is not None:
        is_here = np.array([client not in state.away for client in table.clients])
        columns = table.column[is_here[table.row_of_entry()]]
        held = np.bincount(columns, minlength=len(table.labels)).tolist()
        found |= dict(zip(map(str, table.labels), held, strict=True))
    known = set(map(str, state.start.labels)) if state.start else set()
    return {label: count for label, count in found.items() if label in known or not known}


def _standing(state: RunState, held: Mapping[str, int]) -> dict[str, float]:
    """Return the standing of each label; empty as long as it is not meaningful."""
    influence, table = state.influence(), state.table
    if not held or table is None or not any(influence.values()):  # the strategy tells no weights
        return {}
    if (state.participation()["Aggregations"] or 0) < AGGREGATIONS_PER_CLIENT * len(table):
        return {}
    found = label_standing(influence, table)
    return {str(label): value for label, value in found.items() if str(label) in held}


def _at_risk(
    state: RunState,
    trends: Sequence[LabelTrend],
    holders: Mapping[str, int],
    standing: Mapping[str, float],
) -> Iterator[LabelRisk]:
    trend_of = {trend.label: trend for trend in trends}
    rare = _rare_labels(state)
    names = dict.fromkeys([*holders, *trend_of])

    def urgency(label: str) -> tuple[bool, bool, float]:
        recall = trend_of[label].recall if label in trend_of else 0.0
        return label not in rare, holders.get(label) != 0, recall

    for label in sorted(names, key=urgency):
        trend, own = trend_of.get(label), standing.get(label)
        reasons: dict[RiskReason, bool] = {
            "last holder gone": holders.get(label) == 0,
            "low standing": own is not None and own < LOW_STANDING,
            "falling recall": trend is not None and trend.falling,
            "low recall": trend is not None and trend.behind,
        }
        if any(reasons.values()):
            gone = state.given_up.get(label) if reasons["last holder gone"] else None
            yield LabelRisk(
                label,
                label in rare,
                tuple(reason for reason, holds in reasons.items() if holds),
                holders.get(label),
                gone,
                own,
                trend and trend.recall,
                trend and trend.change,
            )


def _trends(state: RunState) -> Iterator[LabelTrend]:
    last = state.recent[-1].recall if state.recent else {}
    known = {label: recall for label, recall in last.items() if recall is not None}
    mean = _mean(list(known.values())) or 0.0
    rare = _rare_labels(state)
    for label, recall in known.items():
        change = _change([e.recall.get(label) for e in state.recent])
        falling = change is not None and change <= -FALLING_BY
        yield LabelTrend(label, label in rare, recall, change, recall < LOW_RECALL * mean, falling)


def _rare_labels(state: RunState) -> set[str]:
    return set(map(str, state.start.rare_labels)) if state.start else set()


def _slots(state: RunState) -> Iterator[BufferSlot]:
    """Yield the slots of the buffer; a client's slots hold its latest updates, in order."""
    if state.buffer is None:
        return
    clients, weights = state.buffer.buffer, state.buffer.weights
    if len(weights) != len(clients):  # there was no aggregation
        weights = [None] * len(clients)
    after = Counter(clients)
    for client, weight in zip(clients, weights, strict=True):
        own = state.sites[client].events if client in state.sites else []
        known = after[client] <= len(own)
        age = state.events - own[-after[client]] if known else None
        after[client] -= 1
        yield BufferSlot(client, weight, age, client in state.rare)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _change(found: Sequence[float | None]) -> float | None:
    """Return the mean of the last values minus the mean of as many before; None if too few."""
    values = [value for value in found if value is not None]
    span = min(TREND, len(values) // 2)
    if not span:
        return None
    before, after = values[-2 * span : -span], values[-span:]
    return (sum(after) - sum(before)) / span
