"""The state of a run: one fold over the records of its log, which every view asks.

`RunState.apply` takes in one record, from a file or from a run that is going on. Nothing else reads
what records mean: the summary is a method here, the live views are functions in `live`, and the
formulas are in `metrics` and `goals`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import holders
from fedraw.core.types import ClientId
from fedraw.eventlog.goals import MARKS, RARE_GOALS, Goal, GoalWatch
from fedraw.eventlog.metrics import (
    METRICS,
    TAIL,
    Influence,
    Participation,
    label_influence,
    measured,
    tail_of,
)
from fedraw.eventlog.records import (
    ArrivalRecord,
    ClearedRecord,
    DeclaredRecord,
    DoubtedRecord,
    EndRecord,
    EvaluationRecord,
    JoinedRecord,
    LeftRecord,
    LostRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
    to_fields,
)
from fedraw.eventlog.summary import read_run

# A trend compares this many last evaluations with as many before them.
TREND = 3
# The most items that are kept: arrivals of one client, refusals, notes of each kind and restarts.
ARRIVALS, LATEST = 64, 5
# What members do after training began.
CHANGES = ("joined", "left", "returned", "declared")
# The most evaluations and the most recalls that a bounded state keeps.
CURVE, CURVE_VALUES = 256, 200_000


# What a summary says of a run that has not come so far.
_NOT_BEGUN = StartRecord(
    origin="server", name="", seed=None, events=None, labels=(), rare_labels=(), spec={}
)
_NOT_EVALUATED = EvaluationRecord(
    event=0, time=0.0, version=0, metrics={}, recall={}, server_models=0
)
_NOT_ENDED = EndRecord(event=0, time=0.0)


@dataclass(slots=True, eq=False)
class Site:
    """What a client has sent so far; times are in the log's time."""

    joined: float
    arrivals: int = 0
    heard: float | None = None  # when its last update arrived, refused ones included
    stale_sum: int = 0
    last_stale: int | None = None
    events: list[int] = field(default_factory=list)  # of its last arrivals, at least 64 of them
    back_off: NoteRecord | None = None


class RunState:
    """Everything that the records of a run say so far.

    A `bounded` state keeps a thinned part of the evaluations, for views that follow a long run.
    """

    def __init__(self, *, bounded: bool = False) -> None:
        self.start: StartRecord | None = None
        self.end: EndRecord | None = None
        self.limit: int | None = None  # the number of events to run
        self.epoch: float | None = None  # unix seconds at the log's time 0, on a server
        self.events = 0  # updates that have reached the server, including refused ones
        self.accepted = 0  # those that were not refused
        self.time = 0.0  # of the last record
        self.version = 0
        # Clients: their latest label counts (those that left included), who is away, who is rare.
        self._counts: dict[ClientId, Mapping[str, int]] = {}
        self._founders: LabelTable | None = None  # initial clients that are not in `_counts` yet
        self._table: LabelTable | None = None
        self.size = 0  # the number of members
        self.away: dict[ClientId, LeftRecord] = {}
        self.rare: set[ClientId] = set()
        self.any_rare = False  # whether a client was ever rare
        self.given_up: dict[str, ClientId] = {}  # the last client to give up each label
        self.changes: dict[str, Counter[ClientId]] = {kind: Counter() for kind in CHANGES}
        self._rare_labels: frozenset[str] = frozenset()
        # Updates: what each client has sent, which aggregations they were in.
        self.sites: dict[ClientId, Site] = {}
        self.waiting: set[ClientId] = set()  # have sent an update to a round that is not closed
        self.buffer: ArrivalRecord | None = None  # the last arrival with a buffer
        self.aggregated_at: int | None = None
        self._participation = Participation()
        self._influence = Influence()
        self._reports: dict[ClientId, Mapping[str, float | None]] = {}  # of each client's training
        self.rejected: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._doubted: dict[str, list[str]] = {}
        # What happened last, newest first.
        self.refusals: deque[RejectedRecord] = deque(maxlen=LATEST)
        self.last_restarts: deque[RestartedRecord] = deque(maxlen=LATEST)
        self.last_notes: deque[NoteRecord] = deque(maxlen=LATEST)
        self.last_quarantines: deque[LeftRecord] = deque(maxlen=LATEST)
        self.notes = self.quarantines = self.restarts = 0
        self.down = 0.0  # seconds without a server, over all restarts
        # Evaluations
        self.recent: deque[EvaluationRecord] = deque(maxlen=2 * TREND)
        self.evaluated = 0
        self._bounded = bounded
        self._kept: list[EvaluationRecord] = []
        self._stride = 1
        self._server_models: float = 0
        self._measured_rare = False
        self._watches: list[GoalWatch] = []  # of AvgRare, then of each rare label

    @classmethod
    def of(cls, records: Iterable[Record], *, bounded: bool = False) -> Self:
        """Return the state after these records."""
        state = cls(bounded=bounded)
        for record in records:
            state.apply(record)
        return state

    @classmethod
    def read(cls, log: Path) -> Self:
        """Return the state at the end of a log."""
        return cls.of(read_run(log))

    def apply(self, record: Record) -> None:
        """Take in the next record of the log."""
        if type(record) is ArrivalRecord:  # nearly all records are arrivals
            self._arrive(record)
        elif take := _TAKES.get(type(record)):
            if not isinstance(record, StartRecord):
                self.time = record.time
            take(self, record)

    def _begin(self, record: StartRecord) -> None:
        self.start, self.limit, self.epoch = record, record.events, record.epoch
        self._rare_labels = frozenset(record.rare_labels)
        self._participation = Participation(record.attacker)
        self._influence = Influence(record.influence)
        labels = [Goal(label, mark) for label in record.rare_labels for mark in MARKS]
        self._watches = [GoalWatch(goal) for goal in (*RARE_GOALS, *labels)]

    def _arrive(self, record: ArrivalRecord) -> None:
        client, event, stale = record.client, record.event, record.staleness_events
        self.time = time = record.time
        self.events, self.version = event, record.version
        self.accepted += 1
        site = self.sites.get(client) or self._site(client)
        site.arrivals += 1
        site.heard, site.last_stale, site.back_off = time, stale, None
        site.stale_sum += stale
        site.events.append(event)
        if len(site.events) >= 2 * ARRIVALS:  # now and then, because it moves the others
            del site.events[:ARRIVALS]
        if record.metrics:
            self._reports[client] = record.metrics
        if client in self.rare:
            self._participation.rare_arrived(stale)
        if record.buffer:  # the buffer of a round is empty until the round closes
            self.buffer = record
        if record.aggregated:
            self.aggregated_at = event
            if self.waiting:
                self.waiting.clear()
            self._participation.aggregated(record.buffer, record.weights, self.rare)
            self._influence.aggregated(record.buffer, record.weights, self.size, self.away)
        elif not record.buffer:
            self.waiting.add(client)

    def _evaluate(self, record: EvaluationRecord) -> None:
        self.recent.append(record)
        if self.evaluated % self._stride == 0:
            self._kept.append(record)
        self.evaluated += 1
        if self._bounded:
            most = min(CURVE, max(TREND, CURVE_VALUES // max(1, len(record.recall))))
            if len(self._kept) > most:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self.version = max(self.version, record.version)
        self._server_models = max(self._server_models, record.server_models)
        self._measured_rare |= record.metrics.get("AvgRare") is not None
        if record.final:  # no further event would change the model
            self.limit = record.event
        for watch in self._watches:
            watch.observe(record)

    def _refuse(self, record: RejectedRecord) -> None:
        self.events = record.event
        self.rejected[str(record.client)] += 1
        self.refusals.appendleft(record)
        self._site(record.client).heard = record.time

    def _lose(self, record: LostRecord) -> None:
        self.lost[str(record.client)] += 1

    def _note(self, record: NoteRecord) -> None:
        self.notes += 1
        self.last_notes.appendleft(record)
        if record.about == "back-off" and record.client in self.sites:
            self.sites[record.client].back_off = record

    def _finish(self, record: EndRecord) -> None:
        self.end = record

    def _doubt(self, record: DoubtedRecord | ClearedRecord) -> None:
        client, label = str(record.client), str(record.label)
        others = [known for known in self._doubted.get(client, []) if known != label]
        is_doubt = isinstance(record, DoubtedRecord)
        self._doubted[client] = [*others, label] if is_doubt else others

    # Clients

    def add_founders(self, table: LabelTable) -> None:
        """Add all initial clients, after the start record.

        It has the effect of one `JoinedRecord` for each of them on the summary, but is faster.
        """
        self._founders, self.size = table, len(table)
        rare = holders(table, [label for label in table.labels if label in self._rare_labels])
        for position in np.flatnonzero(rare).tolist():
            self._count_as_rare(table.clients[position], True)

    def _join(self, record: JoinedRecord) -> None:
        client, known = record.client, record.client in self.counts
        if not known or client in self.away:
            self.size += 1
        self.away.pop(client, None)
        if record.event or record.time:  # founders join at event 0 and time 0
            self.changes["returned" if known else "joined"][client] += 1
        site = self._site(client)
        site.joined, site.back_off = record.time, None
        self._hold(client, record.counts)

    def _declare(self, record: DeclaredRecord) -> None:
        if record.counts is not None:  # a false claim has no counts
            self.changes["declared"][record.client] += 1
            self._give_up(record.client)
            self._hold(record.client, record.counts)

    def _give_up(self, client: ClientId) -> None:
        """Remember the client as the last one to give up each of its labels."""
        self.given_up |= dict.fromkeys(map(str, self.counts.get(client, ())), client)

    def _hold(self, client: ClientId, counts: Mapping[str, int]) -> None:
        """Replace a client's label counts; zeros count as nothing."""
        self.counts[client] = held = without_zeros(counts)
        self._table = None
        self._count_as_rare(client, not self._rare_labels.isdisjoint(held))

    def _count_as_rare(self, client: ClientId, is_rare: bool) -> None:
        """Set whether a client counts as rare from now on: by the labels that it declares."""
        (self.rare.add if is_rare else self.rare.discard)(client)
        self.any_rare |= is_rare
        self._influence.count_as(client, is_rare)

    def _leave(self, record: LeftRecord) -> None:
        client = record.client
        if client in self.counts and client not in self.away:
            self.size -= 1
            self._influence.left(client, self.size)
        self.changes["left"][client] += 1
        self._give_up(client)
        self._site(client).back_off = None
        self.waiting.discard(client)
        self.away.pop(client, None)  # moves the client to the end
        self.away[client] = record
        if record.until is not None:
            self.quarantines += 1
            self.last_quarantines.appendleft(record)

    def _restart(self, record: RestartedRecord) -> None:
        self.epoch = record.epoch
        self.restarts += 1
        self.down += record.gap
        self.last_restarts.appendleft(record)
        self.limit = self.limit if record.events is None else record.events or None
        for site in self.sites.values():  # the server asks all sites again
            site.back_off = None

    def _site(self, client: ClientId) -> Site:
        return self.sites.setdefault(client, Site(self.time))

    # Questions

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.end is not None

    @property
    def attacker(self) -> ClientId | None:
        """The client that misreports its labels, if there is one."""
        return self.start.attacker if self.start else None

    @property
    def counts(self) -> dict[ClientId, Mapping[str, int]]:
        """The latest label counts of all clients that ever took part."""
        if self._founders is not None:
            founders = cast("Mapping[ClientId, Mapping[str, int]]", self._founders.counts())
            self._counts.update(founders)
            self._founders = None
        return self._counts

    @property
    def members(self) -> list[ClientId]:
        """The clients that take part now."""
        return [client for client in self.counts if client not in self.away]

    @property
    def rare_clients(self) -> list[ClientId]:
        """Clients that hold a rare label, including clients that have left."""
        return [client for client in self.counts if client in self.rare]

    @property
    def table(self) -> LabelTable | None:
        """The latest label counts of all clients with samples; None without any."""
        if self._table is None:
            known = {client: held for client, held in self.counts.items() if held}
            self._table = LabelTable.from_counts(known) if known else None
        return self._table

    @property
    def evaluations(self) -> list[EvaluationRecord]:
        """All evaluations; of a bounded state an even selection, and the last one."""
        newest = [own for own in list(self.recent)[-1:] if own is not self._kept[-1]]
        return [*self._kept, *newest]

    @property
    def tail_evaluations(self) -> list[EvaluationRecord]:
        """The last five evaluations; only the last one if its model cannot change any more."""
        last = list(self.recent)
        return last[-1:] if last and last[-1].final else last[-TAIL:]

    @property
    def doubted(self) -> dict[str, list[str]]:
        """The labels for which a client's updates contradict its claim, by client."""
        return {client: list(labels) for client, labels in self._doubted.items() if labels}

    @property
    def training(self) -> dict[str, float | None]:
        """The mean over the last training report of each client, by metric."""
        names = dict.fromkeys(name for own in self._reports.values() for name in own)
        found = {name: [own.get(name) for own in self._reports.values()] for name in names}
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        return {name: sum(own) / len(own) if own else None for name, own in known.items()}

    @property
    def reached(self) -> dict[str, dict[str, float | None]]:
        """What it took until AvgRare, and the recall of each rare label, passed 50 and 80 %.

        Empty if the run has no rare label, or fewer than the five evaluations that this needs.
        """
        enough = self.evaluated >= TAIL or (self.evaluated and self.recent[-1].final)
        if not (self._measured_rare and enough):
            return {}
        return {str(watch.goal): watch.costs() for watch in self._watches}

    def participation(self) -> dict[str, float | None]:
        """Return the statistics of arrivals and of the buffer so far; see `Participation`."""
        return self._participation.metrics(self.accepted, any_rare=self.any_rare)

    def influence(self) -> dict[ClientId, float]:
        """Return the mean weight of each client over the aggregations so far; see `Influence`."""
        return self._influence.by_client()

    def _changes(self) -> dict[str, Any] | None:
        if not self.restarts and not any(self.changes.values()):
            return None  # as in most simulations
        found = {
            kind: {str(client): n for client, n in own.items()}
            for kind, own in self.changes.items()
        }
        return {**found, "restarts": self.restarts, "down": self.down}

    def weights(self, arrival: ArrivalRecord) -> dict[ClientId, float]:
        """Return the weight of each client in the aggregation of the last arrival."""
        return self._influence.weights(arrival.buffer, arrival.weights)

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        start, end = self.start or _NOT_BEGUN, self.end or _NOT_ENDED
        last = self.recent[-1] if self.recent else _NOT_EVALUATED
        tail, influence = self.tail_evaluations, self.influence()
        labels = label_influence(influence, self.table) if influence and self.table else {}
        content: dict[str, Any] = {
            "name": start.name or None,
            "seed": start.seed,
            "data": start.data or None,
            "rare_labels": list(start.rare_labels),
            "notes": list(start.notes),
            "finished": self.finished,
            "events": self.events,
            "ended": None if last.final or start.is_server else end.reason,
            "final": end.reason if last.final else None,
            "rejected": dict(self.rejected),
            "lost": dict(self.lost) or None,
            "costs": end.costs,
            "doubted": self.doubted or None,
            "inferred": last.inferred,
            "metrics": {
                **dict.fromkeys(METRICS),
                **last.metrics,
                **self.participation(),
                "RareInfluence": self._influence.rare_share() if self.any_rare else None,
            },
            "tail": tail_of([measured(to_fields(own)) for own in tail]),
            "reached": self.reached,
            "training": self.training or None,
            "own": last.own,
            "own_rare": last.own_rare,
            "calibrated": last.calibrated,
            "server_models": self._server_models,
            "recall": last.recall,
            "tail_recall": tail_of([own.recall for own in tail]),
            "confusion": last.confusion,
            "influence": {str(client): influence.get(client, 0.0) for client in self.counts},
            "label_influence": {str(label): value._asdict() for label, value in labels.items()},
            "changes": self._changes(),
            "spec": start.spec,
        }
        always = ("name", "seed", "confusion")
        return {key: v for key, v in content.items() if v is not None or key in always}


def without_zeros(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return label counts without labels whose count is zero.

    >>> without_zeros({"cat": 2, "owl": 0})
    {'cat': 2}
    """
    return counts if all(counts.values()) else {label: n for label, n in counts.items() if n}


# What other records than arrivals change; scores and the former records of segments change nothing.
_TAKES: dict[type[Record], Callable[[RunState, Any], None]] = {
    StartRecord: RunState._begin,
    EvaluationRecord: RunState._evaluate,
    RejectedRecord: RunState._refuse,
    LostRecord: RunState._lose,
    JoinedRecord: RunState._join,
    LeftRecord: RunState._leave,
    DeclaredRecord: RunState._declare,
    DoubtedRecord: RunState._doubt,
    ClearedRecord: RunState._doubt,
    NoteRecord: RunState._note,
    RestartedRecord: RunState._restart,
    EndRecord: RunState._finish,
}
