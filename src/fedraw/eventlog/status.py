"""The status and the details of a running run.

`RunProgress` computes the details record by record, in bounded memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId
from fedraw.eventlog.influence import label_standing
from fedraw.eventlog.measures import tail_evaluations, tail_of
from fedraw.eventlog.records import (
    ArrivalRecord,
    DeclaredRecord,
    EvaluationRecord,
    JoinedRecord,
    LeftRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
)
from fedraw.eventlog.sites import Sites, SiteState, SiteStatus
from fedraw.eventlog.summary import RunSummary

# The most items that are kept: arrivals of one client, refusals, notes of each kind, points of a
# curve, restarts.
ARRIVALS, REFUSALS, NOTES, CURVE, RESTARTS = 64, 5, 5, 256, 5
# The most values in a curve; with many labels, it has fewer points.
CURVE_VALUES = 200_000
SHOWN = ("GlobalAcc", "AvgRare")
# A trend compares this many last evaluations with as many before them.
TREND = 3
# The recall of a label is falling if it drops by at least this many points.
FALLING_BY = 10.0
# A recall below this share of the mean recall is low.
LOW_RECALL = 2 / 3

# Below this standing, a label is at risk or lost under every method, by the audit's thresholds.
LOW_STANDING = 0.1
# Standing is not meaningful before this many aggregations per client.
AGGREGATIONS_PER_CLIENT = 3

RunState = Literal["starting", "running", "stopped", "finished"]


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
    state: RunState
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
    # What it took until AvgRare, and each rare label, passed 50 and 80 %; see RunSummary.reached.
    reached: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def own(self) -> list[OwnMetric]:
        """The user's own metrics: of the last evaluation, then of the clients' training."""
        tested = self.curve[-1].own if self.curve else {}
        return [OwnMetric(name, "evaluation", value) for name, value in tested.items()] + [
            OwnMetric(name, "training", value) for name, value in self.training.items()
        ]


class RunProgress:
    """Computes the details of a run from the records of its growing log, one by one."""

    def __init__(self) -> None:
        self.summary = RunSummary()
        self.limit: int | None = None  # the number of events to run
        self._version = 0
        self._aggregated_at: int | None = None
        self._curve = _ThinnedCurve()
        self._arrivals: dict[ClientId, deque[int]] = {}
        self._buffer: ArrivalRecord | None = None
        self._refusals: deque[Incident] = deque(maxlen=REFUSALS)
        self._away: dict[ClientId, Incident] = {}
        self._restarts: deque[Restart] = deque(maxlen=RESTARTS)
        self._notes = 0
        self._quarantined = 0
        self._last_notes: deque[Incident] = deque(maxlen=NOTES)
        self._last_quarantines: deque[Incident] = deque(maxlen=NOTES)
        self._time = 0.0
        self._sites = Sites()
        self._changes = 0  # of members and their labels
        self._last_holder: dict[str, ClientId | None] = {}  # the last client to give up each label
        # Holders and standing by label, and the state at which they were computed.
        self._label_cache: tuple[tuple[int, int], Mapping[str, int], Mapping[str, float]] | None
        self._label_cache = None

    def observe(self, record: Record) -> None:
        """Add the next record of the log."""
        if isinstance(record, JoinedRecord | LeftRecord | DeclaredRecord):
            self._update_last_holders(record)
        self.summary.observe(record)
        self._sites.observe(record)
        if isinstance(record, StartRecord):
            self.limit = record.events
            self._sites.back_off = _number(record.spec.get("server", {}).get("back_off"))
        else:
            self._time = record.time
        match record:
            case ArrivalRecord():
                self._version = record.version
                own = self._arrivals.setdefault(record.client, deque(maxlen=ARRIVALS))
                own.append(record.event)
                if record.buffer:  # the buffer of a round is empty until the round closes
                    self._buffer = record
                if record.aggregated:
                    self._aggregated_at = record.event
            case RejectedRecord():
                self._refusals.appendleft(Incident(record.event, record.client, record.reason))
            case EvaluationRecord():
                # No further event would change a final model.
                self.limit = record.event if record.final else self.limit
                self._curve.add(
                    EvaluationPoint(record.event, record.metrics, record.recall, record.own or {})
                )
                del self.summary.evaluations[: -2 * TREND]
            case JoinedRecord():
                self._away.pop(record.client, None)
            case LeftRecord():
                left = Incident(record.event, record.client, record.reason)
                self._away.pop(record.client, None)  # moves the client to the end
                self._away[record.client] = left
                self._note(left, is_note=False)
            case NoteRecord():
                self._note(Incident(record.event, record.client, record.reason))
            case RestartedRecord():
                restart = Restart(record.event, record.gap, len(record.reasked))
                self._restarts.appendleft(restart)
                self.limit = self.limit if record.events is None else record.events or None

    def _update_last_holders(self, record: JoinedRecord | LeftRecord | DeclaredRecord) -> None:
        """Update the last holder of each label, before the record takes effect."""
        self._changes += 1
        if not isinstance(record, JoinedRecord):
            for label in self.summary.counts.get(record.client, ()):
                self._last_holder[str(label)] = record.client
        if not isinstance(record, LeftRecord):
            for label, count in (record.counts or {}).items():
                if count:
                    self._last_holder.setdefault(str(label), None)

    def _note(self, incident: Incident, is_note: bool = True) -> None:
        """Keep a note, or a departure that is a quarantine."""
        self._notes += is_note
        if "quarantine" in incident.reason.lower():
            self._quarantined += 1
            self._last_quarantines.appendleft(incident)
        elif is_note:
            self._last_notes.appendleft(incident)

    @property
    def time(self) -> float:
        """The time of the last record, in the log's time."""
        return self._time

    def sites(self, now: float | None = None) -> list[SiteStatus]:
        """Return all clients that ever took part, at `now` in the log's time."""
        return self._sites.statuses(self._time if now is None else now)

    def site_counts(self, now: float | None = None) -> dict[SiteState, int]:
        """Return the number of clients in each state."""
        return self._sites.counts(self._time if now is None else now)

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The shown metrics, as the mean of the last five evaluations."""
        tail = tail_of([own.metrics for own in tail_evaluations(self.summary.evaluations)])
        return {key: tail.get(key) for key in SHOWN}

    def detail(self) -> RunDetail:
        """Return the details so far."""
        summary = self.summary
        rare = tuple(summary.rare_clients)
        labels = tuple(sorted(self._labels(), key=lambda trend: trend.recall))
        strategy = summary.start.spec.get("strategy", {}) if summary.start else {}
        holders, standing = self._label_holders()
        return RunDetail(
            curve=self._curve.points(),
            changes={
                key: _change([e.metrics.get(key) for e in summary.evaluations]) for key in SHOWN
            },
            mean_recall=_mean([trend.recall for trend in labels]),
            labels=labels,
            buffer=tuple(self._slots(set(rare))),
            capacity=strategy.get("buffer"),
            aggregated_at=self._aggregated_at,
            version=self._version,
            clients=len(summary.clients),
            rare_clients=rare,
            unheard=tuple(c for c in summary.members if c not in self._arrivals),
            participation=summary.dynamics(),
            rejected=summary.rejected,
            refusals=tuple(self._refusals),
            doubted=summary.doubted,
            inferred=self._inferred(),
            members=len(summary.members),
            at_risk=tuple(self._at_risk(labels, holders, standing)),
            holders=holders,
            standing=standing,
            training=summary.training,
            reached=summary.reached,
            history=ServerHistory(
                away=tuple(reversed(self._away.values())),
                changed=len(summary.changes.clients),
                restarts=summary.changes.restarts,
                last_restarts=tuple(self._restarts),
                notes=self._notes,
                quarantined=self._quarantined,
                last_notes=(*self._last_quarantines, *self._last_notes),
            ),
        )

    def _label_holders(self) -> tuple[Mapping[str, int], Mapping[str, float]]:
        """Return the number of holders and the standing of each label.

        Both are recomputed after a change of members and after an evaluation.
        """
        summary = self.summary
        now = (self._changes, self._curve.seen)
        if self._label_cache is None or self._label_cache[0] != now:
            known = {str(label) for label in summary.start.labels} if summary.start else set()
            held = dict.fromkeys(self._last_holder, 0)
            for client in summary.members:
                for label in summary.counts[client]:
                    held[str(label)] += 1
            holders = {label: n for label, n in held.items() if label in known or not known}
            self._label_cache = (now, holders, self._standing(holders))
        return self._label_cache[1], self._label_cache[2]

    def _standing(self, labels: Collection[str]) -> Mapping[str, float]:
        counts = {client: own for client, own in self.summary.counts.items() if own}
        aggregations = self.summary.dynamics().get("Aggregations") or 0.0
        if not labels or aggregations < AGGREGATIONS_PER_CLIENT * len(counts):
            return {}
        influence = self.summary.influence()
        if not any(influence.values()):  # the strategy tells no weights
            return {}
        found = label_standing(influence, LabelTable.from_counts(counts))
        return {str(label): value for label, value in found.items() if str(label) in labels}

    def _at_risk(
        self,
        trends: Sequence[LabelTrend],
        holders: Mapping[str, int],
        standing: Mapping[str, float],
    ) -> Iterator[LabelRisk]:
        trend_of = {trend.label: trend for trend in trends}
        rare = set(map(str, self.summary.start.rare_labels)) if self.summary.start else set()
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
                gone = self._last_holder[label] if reasons["last holder gone"] else None
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

    def _inferred(self) -> Mapping[str, Sequence[ClientId]]:
        evaluations = self.summary.evaluations
        found = evaluations[-1].inferred if evaluations else None
        return {} if found is None else found["holders"]

    def _labels(self) -> Iterator[LabelTrend]:
        last = self._curve.last.recall if self._curve.last else {}
        known = {label: recall for label, recall in last.items() if recall is not None}
        mean = _mean(list(known.values())) or 0.0
        rare = set(map(str, self.summary.start.rare_labels)) if self.summary.start else set()
        for label, recall in known.items():
            change = _change([e.recall.get(label) for e in self.summary.evaluations])
            falling = change is not None and change <= -FALLING_BY
            yield LabelTrend(
                label, label in rare, recall, change, recall < LOW_RECALL * mean, falling
            )

    def _slots(self, rare: set[ClientId]) -> Iterator[BufferSlot]:
        """Yield the slots of the buffer; a client's slots hold its latest updates, in order."""
        if self._buffer is None:
            return
        clients = self._buffer.buffer
        weights = self._buffer.weights
        if len(weights) != len(clients):  # there was no aggregation
            weights = [None] * len(clients)
        after = Counter(clients)
        for client, weight in zip(clients, weights, strict=True):
            own = self._arrivals.get(client, ())
            known = after[client] <= len(own)
            age = self.summary.events - own[-after[client]] if known else None
            after[client] -= 1
            yield BufferSlot(client, weight, age, client in rare)


class _ThinnedCurve:
    """The evaluations of a run, thinned evenly when there are too many."""

    def __init__(self) -> None:
        self.last: EvaluationPoint | None = None
        self.seen = 0
        self._kept: list[EvaluationPoint] = []
        self._stride = 1

    def add(self, point: EvaluationPoint) -> None:
        """Append a point."""
        self.last = point
        if self.seen % self._stride == 0:
            self._kept.append(point)
        self.seen += 1
        most = min(CURVE, max(TREND, CURVE_VALUES // max(1, len(point.recall))))
        if len(self._kept) > most:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def points(self) -> tuple[EvaluationPoint, ...]:
        """Return the kept points and the last point."""
        newest = [] if self.last is None or self._kept[-1] is self.last else [self.last]
        return (*self._kept, *newest)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


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
