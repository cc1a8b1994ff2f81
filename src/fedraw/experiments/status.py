"""What is known of a run that goes on: in a line, and in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fedraw.core.types import ClientId

# Points kept of a curve.
CURVE = 256

State = Literal["starting", "running", "stopped", "finished"]


class Slot(NamedTuple):
    """An update in the buffer; the weight is None until it was aggregated."""

    client: ClientId
    weight: float | None
    age: int | None  # events since it arrived
    rare: bool


class Refusal(NamedTuple):
    """An update that was refused; or a site that left, or of which something else is told."""

    event: int
    client: ClientId | None  # a note may be about nobody
    reason: str


class Restart(NamedTuple):
    """A server that is back; whatever it had asked for was asked again of `reasked` sites."""

    event: int
    gap: float | None  # seconds
    reasked: int


@dataclass(frozen=True)
class Life:
    """What a real federation goes through beside its updates; all of it is newest first."""

    away: tuple[Refusal, ...] = ()  # sites that left and have not come back
    changed: int = 0  # sites that joined later, left or declared new labels
    restarts: int = 0
    last_restart: Restart | None = None
    notes: int = 0
    quarantined: int = 0  # how often a site was
    last_notes: tuple[Refusal, ...] = ()  # those of quarantine before all others


class Point(NamedTuple):
    """One evaluation; accuracies and recall in percent."""

    event: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]


class LabelTrend(NamedTuple):
    label: str
    rare: bool
    recall: float
    change: float | None  # the last evaluations against those before
    behind: bool  # far below the mean recall
    falling: bool


@dataclass(frozen=True)
class Status:
    """One run in a line."""

    folder: Path
    name: str
    seed: int | None
    state: State
    event: int
    events: int | None  # wanted
    written: float  # when the log last grew, in seconds since 1970
    quiet: float  # seconds since then
    rate: float | None  # events a second
    seconds_left: float | None
    unread: int  # bytes of the log that are still to be read
    checkpoint: int | None  # its event
    metrics: Mapping[str, float | None]
    is_server: bool = False  # of a real federation


@dataclass(frozen=True)
class Detail:
    """What a log says so far, apart from its status."""

    curve: tuple[Point, ...]
    changes: Mapping[str, float | None]  # of GlobalAcc and AvgRare
    mean_recall: float | None
    labels: tuple[LabelTrend, ...]  # worst first
    buffer: tuple[Slot, ...]  # oldest first
    capacity: int | None
    aggregated_at: int | None  # event of the last aggregation
    version: int
    clients: int  # everyone who ever took part
    rare_clients: tuple[ClientId, ...]
    unheard: tuple[ClientId, ...]  # members of whom nothing has come yet
    participation: Mapping[str, float | None]
    rejected: Mapping[str, int]
    refusals: tuple[Refusal, ...]  # newest first
    doubted: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels, by client
    # By label, who has it as far as updates show; of labels that few have.
    inferred: Mapping[str, Sequence[ClientId]] = field(default_factory=dict)
    members: int | None = None  # those who take part now
    life: Life = field(default_factory=Life)


class Curve:
    """Points from first to last, thinned out evenly when they become many."""

    def __init__(self) -> None:
        self.last: Point | None = None
        self._kept: list[Point] = []
        self._seen = 0
        self._stride = 1

    def add(self, point: Point) -> None:
        self.last = point
        if self._seen % self._stride == 0:
            self._kept.append(point)
        self._seen += 1
        if len(self._kept) > CURVE:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def points(self) -> tuple[Point, ...]:
        newest = [] if self.last is None or self._kept[-1] is self.last else [self.last]
        return (*self._kept, *newest)
