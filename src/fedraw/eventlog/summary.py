"""Replays an event log into the summary of a run, and seals the summary in `summary.json`.

The result is the same for records that are read from disk and for records of a running run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import holders
from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.eventlog.dynamics import Dynamics
from fedraw.eventlog.influence import Influence, label_influence
from fedraw.eventlog.log_file import LOG, Position, verify_log
from fedraw.eventlog.measures import (
    MARKS,
    METRICS,
    RARE_GOALS,
    TAIL,
    Goal,
    GoalWatch,
    measured,
    tail_evaluations,
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
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
    to_fields,
)

SUMMARY = "summary.json"


@dataclass
class Changes:
    """The number of joins, departures, returns and declarations after training began, by client."""

    joined: Counter[ClientId] = field(default_factory=Counter)
    left: Counter[ClientId] = field(default_factory=Counter)
    returned: Counter[ClientId] = field(default_factory=Counter)
    declared: Counter[ClientId] = field(default_factory=Counter)
    restarts: int = 0
    down: float = 0.0  # seconds without a server, over all restarts

    def as_dict(self) -> dict[str, Any]:
        """Return the changes as JSON; empty if there are none, as in most simulations."""
        if not (self.clients or self.restarts):
            return {}
        return {
            key: {str(client): n for client, n in value.items()}
            if isinstance(value, Mapping)
            else value
            for key, value in vars(self).items()
        }

    @property
    def clients(self) -> set[ClientId]:
        """Clients that joined late, left, or changed labels."""
        return {*self.joined, *self.left, *self.returned, *self.declared}


class _Members:
    """The members and their labels.

    A client that has left stays in `counts`, because its updates still count.
    """

    def __init__(self, rare_labels: Collection[str] = ()) -> None:
        self._counts: dict[ClientId, Mapping[str, int]] = {}
        self._founders: LabelTable | None = None  # initial clients that are not in `_counts` yet
        self.present: dict[ClientId, None] = {}
        self.changes = Changes()
        self._rare_labels = frozenset(rare_labels)

    @property
    def counts(self) -> dict[ClientId, Mapping[str, int]]:
        """The latest label counts of each client."""
        if self._founders is not None:
            self._counts.update(
                cast("Mapping[ClientId, Mapping[str, int]]", self._founders.counts())
            )
            self._founders = None
        return self._counts

    def add_founders(self, table: LabelTable) -> list[ClientId]:
        """Add all clients of a table; return the clients with a rare label."""
        self._founders = table
        self.present.update(dict.fromkeys(table.clients))
        rare = holders(table, [label for label in table.labels if label in self._rare_labels])
        return [table.clients[position] for position in np.flatnonzero(rare).tolist()]

    def joined(self, record: JoinedRecord) -> None:
        known = record.client in self.counts
        self.counts[record.client] = without_zeros(record.counts)
        self.present[record.client] = None
        if record.event or record.time:  # founders join at event 0 and time 0
            (self.changes.returned if known else self.changes.joined)[record.client] += 1

    def left(self, record: LeftRecord) -> None:
        self.present.pop(record.client, None)
        self.changes.left[record.client] += 1

    def declared(self, client: ClientId, counts: Mapping[str, int]) -> None:
        self.counts[client] = without_zeros(counts)
        self.changes.declared[client] += 1

    def is_rare(self, client: ClientId) -> bool:
        """Return whether the client holds a rare label, by its latest counts."""
        return not self._rare_labels.isdisjoint(self.counts[client])


class RunSummary:
    """Computes the summary of a run, record by record."""

    def __init__(self) -> None:
        self.start: StartRecord | None = None
        self.evaluations: list[EvaluationRecord] = []
        self.finished = False
        self.events = 0  # updates that have reached the server, including refused ones
        self.costs: Mapping[str, float] | None = None  # hours, bytes and joules of the whole run
        self.ended: str | None = None  # why a simulation ended before all of its events
        self.final: str | None = None  # why its model could not change any more
        self._rejected: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._doubted: dict[str, list[str]] = {}
        self._reports: dict[ClientId, Mapping[str, float | None]] = {}  # of each client's training
        self._members = _Members()
        self._dynamics = Dynamics()
        self._influence = Influence()
        self._watches: list[GoalWatch] = []  # of AvgRare, then of each rare label

    @classmethod
    def of(cls, records: Iterable[Record]) -> RunSummary:
        """Return the summary of these records."""
        summary = cls()
        for record in records:
            summary.observe(record)
        return summary

    def observe(self, record: Record) -> None:
        """Add the next record of the log."""
        match record:
            case ArrivalRecord():
                self.events = record.event
                self._dynamics.observe(record)
                self._influence.observe(record)
                if record.metrics:
                    self._reports[record.client] = record.metrics
            case EvaluationRecord():
                self.evaluations.append(record)
                for watch in self._watches:
                    watch.observe(record)
            case RejectedRecord():
                self.events = record.event
                self._rejected[str(record.client)] += 1
            case DoubtedRecord() | ClearedRecord():
                client, label = str(record.client), str(record.label)
                others = [known for known in self._doubted.get(client, []) if known != label]
                is_doubt = isinstance(record, DoubtedRecord)
                self._doubted[client] = [*others, label] if is_doubt else others
            case StartRecord():
                self.start = record
                self._members = _Members(record.rare_labels)
                self._dynamics = Dynamics(attacker=record.attacker)
                self._influence = Influence(rule=record.influence)
                labels = [Goal(label, mark) for label in record.rare_labels for mark in MARKS]
                self._watches = [GoalWatch(goal) for goal in (*RARE_GOALS, *labels)]
            case EndRecord():
                self.finished = True
                self.costs = record.costs
                if self.evaluations and self.evaluations[-1].final:
                    self.final = record.reason
                elif self.start is not None and not self.start.is_server:
                    self.ended = record.reason
            case LostRecord():
                self._lost[str(record.client)] += 1
            case _:
                self._observe_change(record)

    def observe_founders(self, table: LabelTable) -> None:
        """Add all initial clients, after the start record.

        It has the effect of one `JoinedRecord` for each of them, but is faster.
        """
        self._influence.add_founders(len(table))
        for client in self._members.add_founders(table):
            self._dynamics.count_as(client, True)
            self._influence.count_as(client, True)

    def _observe_change(self, record: Record) -> None:
        members = self._members
        match record:
            case JoinedRecord():
                if record.client not in members.present:
                    self._influence.joined(record.client)
                members.joined(record)
                self._count(record.client)
            case DeclaredRecord(counts=counts) if counts is not None:
                members.declared(record.client, counts)
                self._count(record.client)
            case LeftRecord():
                if record.client in members.present:
                    self._influence.left(record.client)
                members.left(record)
            case RestartedRecord():
                members.changes.restarts += 1
                members.changes.down += record.gap

    def _count(self, client: ClientId) -> None:
        rare = self._members.is_rare(client)
        self._dynamics.count_as(client, rare)
        self._influence.count_as(client, rare)

    @property
    def clients(self) -> list[ClientId]:
        """All clients that ever took part."""
        return list(self._members.counts)

    @property
    def members(self) -> list[ClientId]:
        """The clients that take part now."""
        return list(self._members.present)

    @property
    def counts(self) -> Mapping[ClientId, Mapping[str, int]]:
        """The latest label counts of all clients, including clients that have left."""
        return self._members.counts

    def influence(self) -> dict[ClientId, float]:
        """Return the mean weight of each client over the aggregations so far; see `Influence`."""
        return self._influence.by_client()

    @property
    def rare_clients(self) -> list[ClientId]:
        """Clients that hold a rare label, including clients that have left."""
        return [client for client in self._members.counts if self._members.is_rare(client)]

    @property
    def changes(self) -> Changes:
        """The changes of members and labels after training began."""
        return self._members.changes

    @property
    def rejected(self) -> dict[str, int]:
        """The number of refused updates by client."""
        return dict(self._rejected)

    @property
    def lost(self) -> dict[str, int]:
        """The number of trainings whose update never arrived, by client."""
        return dict(self._lost)

    @property
    def doubted(self) -> dict[str, list[str]]:
        """The labels for which a client's updates contradict its claim, by client."""
        return {client: list(labels) for client, labels in self._doubted.items() if labels}

    @property
    def tail(self) -> dict[str, float | None]:
        """All metrics as the mean of the last five evaluations."""
        return tail_of([measured(to_fields(own)) for own in tail_evaluations(self.evaluations)])

    @property
    def reached(self) -> dict[str, dict[str, float | None]]:
        """What it took until AvgRare, and the recall of each rare label, passed 50 and 80 %.

        Empty if the run has no rare label, or fewer than the five evaluations that this needs.
        """
        measured_rare = any(own.metrics.get("AvgRare") is not None for own in self.evaluations)
        final = measured_rare and self.evaluations[-1].final
        if not measured_rare or (len(self.evaluations) < TAIL and not final):
            return {}
        return {str(watch.goal): watch.costs() for watch in self._watches}

    def dynamics(self) -> dict[str, float | None]:
        """Return the buffer statistics so far; see `Dynamics`."""
        return self._dynamics.metrics()

    def as_dict(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        start = self.start
        last = self.evaluations[-1] if self.evaluations else None
        influence = self._influence.by_client()
        counts = self._members.counts
        table = LabelTable.from_counts({c: held for c, held in counts.items() if held})
        labels = label_influence(influence, table) if influence else {}
        changes = self.changes.as_dict()
        return {
            "name": start and start.name,
            "seed": start and start.seed,
            **({"data": start.data} if start and start.data else {}),
            "rare_labels": list(start.rare_labels) if start else [],
            "notes": list(start.notes) if start else [],
            "finished": self.finished,
            "events": self.events,
            **({"ended": self.ended} if self.ended else {}),
            **({"final": self.final} if self.final else {}),
            "rejected": self.rejected,
            **({"lost": self.lost} if self._lost else {}),
            **({"costs": dict(self.costs)} if self.costs is not None else {}),
            **({"doubted": self.doubted} if self.doubted else {}),
            **({"inferred": last.inferred} if last and last.inferred is not None else {}),
            "metrics": {
                **dict.fromkeys(METRICS),
                **(last.metrics if last else {}),
                **self.dynamics(),
                "RareInfluence": self._influence.rare_share(),
            },
            "tail": self.tail,
            "reached": self.reached,
            **self._optional(last),
            "server_models": max((e.server_models for e in self.evaluations), default=0),
            "recall": last.recall if last else {},
            "tail_recall": tail_of([own.recall for own in tail_evaluations(self.evaluations)]),
            "confusion": last and last.confusion,
            "influence": {str(client): influence.get(client, 0.0) for client in counts},
            "label_influence": {str(label): value._asdict() for label, value in labels.items()},
            **({"changes": changes} if changes else {}),
            "spec": start.spec if start else {},
        }

    @property
    def training(self) -> dict[str, float | None]:
        """The mean over the last training report of each client, by metric."""
        names = dict.fromkeys(name for own in self._reports.values() for name in own)
        found = {name: [own.get(name) for own in self._reports.values()] for name in names}
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        return {name: sum(own) / len(own) if own else None for name, own in known.items()}

    def _optional(self, last: EvaluationRecord | None) -> dict[str, Any]:
        """Return the user's own metrics and the results of further models, if there are any."""
        found: dict[str, Any] = {"training": self.training} if self._reports else {}
        if last is None:
            return found
        own = {"own": last.own, "own_rare": last.own_rare}
        found |= {key: value for key, value in own.items() if value is not None}
        if last.calibrated is not None:
            found["calibrated"] = dict(last.calibrated)
        return found


def without_zeros(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return label counts without labels whose count is zero.

    >>> without_zeros({"cat": 2, "owl": 0})
    {'cat': 2}
    """
    return counts if all(counts.values()) else {label: n for label, n in counts.items() if n}


# summary.json ends with the checksum of everything before it.
_FIELD = b',\n  "sha256": "'
_SUFFIX = len(_FIELD) + 64 + len(b'"\n}\n')


class SealedSummary(NamedTuple):
    """A verified summary, and its information about other files in the folder."""

    content: dict[str, Any]
    log: Position  # the end of the log
    sha256: Mapping[str, str]  # checksums of other files, by name


def seal(content: Mapping[str, Any], log: Position, sha256: Mapping[str, str]) -> bytes:
    """Return the bytes of a summary.json: the summary, the log's end, checksums of other files."""
    files = {LOG: log._asdict(), **sha256}
    body = json.dumps({**content, "files": files}, indent=2).encode()[: -len(b"\n}")]
    return body + _suffix(body)


def read_sealed(path: Path) -> SealedSummary:
    """Read a summary.json; raise BadInput if any byte has changed."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise damaged(path, f"cannot be read ({problem.strerror})") from None
    if content[-_SUFFIX:] != _suffix(content[:-_SUFFIX]):
        raise damaged(path, "was altered, or is of another version: its checksum does not match")
    summary = json.loads(content)
    files = summary.pop("files")
    del summary["sha256"]
    return SealedSummary(summary, Position(**files.pop(LOG)), files)


def end_of_log(log: Path) -> Position | None:
    """Return the end of a finished log according to its summary.json; None without a summary.

    A log of another length is a BadInput.
    """
    summary = log.with_name(SUMMARY)
    if log.name != LOG or not summary.exists():
        return None
    end = read_sealed(summary).log
    size = log.stat().st_size if log.exists() else 0
    if size != end.length:
        verify_log(log, end)  # names the damaged line, if there is one
        raise damaged(log, f"has {size} bytes, but {SUMMARY} belongs to a log of {end.length}")
    return end


def _suffix(body: bytes) -> bytes:
    return _FIELD + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def damaged(path: Path, problem: str) -> BadInput:
    """Return the error for a damaged file of a finished run."""
    return BadInput(f"{path} {problem}; restore it from a copy, or run it again with force=True")
