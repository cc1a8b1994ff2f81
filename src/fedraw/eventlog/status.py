"""What is known about a run that goes on: its status in a line, and its details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fedraw.core.types import ClientId

RunState = Literal["starting", "running", "stopped", "finished"]


class BufferSlot(NamedTuple):
    """An update in the buffer; its weight is None until it is aggregated."""

    client: ClientId
    weight: float | None
    age: int | None  # events since the update arrived
    rare: bool


class Incident(NamedTuple):
    """An update that was refused, a site that left, or a note to the operator."""

    event: int
    client: ClientId | None  # None for a note about no client in particular
    reason: str


class Restart(NamedTuple):
    """A server that was down for `gap` seconds and asked `reasked` sites again."""

    event: int
    gap: float
    reasked: int


@dataclass(frozen=True)
class ServerHistory:
    """What happened in a real federation besides updates; all sequences are newest first."""

    away: tuple[Incident, ...] = ()  # sites that left and have not come back
    changed: int = 0  # sites that joined late, left or declared new labels
    restarts: int = 0
    last_restart: Restart | None = None
    notes: int = 0
    quarantined: int = 0  # how often a site was put in quarantine
    last_notes: tuple[Incident, ...] = ()  # notes about quarantine come before all others


class EvaluationPoint(NamedTuple):
    """One evaluation; accuracies and recall in percent."""

    event: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]


class LabelTrend(NamedTuple):
    """How the recall of one label develops."""

    label: str
    rare: bool
    recall: float
    change: float | None  # the last evaluations against those before
    behind: bool  # far below the mean recall
    falling: bool


@dataclass(frozen=True)
class RunStatus:
    """One run in a line."""

    folder: Path
    name: str
    seed: int | None
    state: RunState
    event: int
    events: int | None  # wanted
    written: float  # when the log last grew, in unix seconds
    quiet: float  # seconds since then
    rate: float | None  # events per second, as seen while following the log
    seconds_left: float | None
    unread: int  # bytes of the log that are still to be read
    checkpoint: int | None  # its event
    metrics: Mapping[str, float | None]
    is_server: bool = False


@dataclass(frozen=True)
class RunDetail:
    """What the log of a run says so far, apart from its status."""

    curve: tuple[EvaluationPoint, ...]
    changes: Mapping[str, float | None]  # of GlobalAcc and AvgRare
    mean_recall: float | None
    labels: tuple[LabelTrend, ...]  # worst first
    buffer: tuple[BufferSlot, ...]  # oldest first
    capacity: int | None
    aggregated_at: int | None  # event of the last aggregation
    version: int
    clients: int  # all clients that ever took part
    rare_clients: tuple[ClientId, ...]
    unheard: tuple[ClientId, ...]  # members that have not sent any update yet
    participation: Mapping[str, float | None]
    rejected: Mapping[str, int]
    refusals: tuple[Incident, ...]  # newest first
    doubted: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels, by client
    # Holders of the labels that few clients have, by label, as far as updates show.
    inferred: Mapping[str, Sequence[ClientId]] = field(default_factory=dict)
    members: int | None = None  # clients that take part now
    history: ServerHistory = field(default_factory=ServerHistory)
