"""Checkpoints: a run between two arrivals on disk, written atomically and verified when read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedraw.core.collection import paused_collection
from fedraw.core.types import ClientId, Floats, Ints, Vector
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Position
from fedraw.simulation.loop import InTraining, Saved, Simulation, Timeline
from fedraw.storage import snapshot
from fedraw.storage.numbered_folders import NumberedFolders

# Seconds between two checkpoints, at least, and the largest share of the time that they may take.
EVERY_SECONDS = 15.0
LARGEST_SHARE = 0.02

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A simulation between two arrivals, and where its log ended then."""

    saved: Saved
    log: Position


@dataclass
class _Flights:
    """The clients in training, and the hand-outs they are part of, one column for each field.

    Clients that were handed the model together share one `InTraining`: `flight` is the position of
    each client's. `model` and `reason` are positions in `models` and `reasons`.
    """

    clients: list[ClientId]
    flight: Ints
    models: list[Vector]
    model: Ints
    version: Ints
    event: Ints
    time: Floats
    reasons: list[str]
    reason: Ints
    paused: Floats

    @classmethod
    def of(cls, in_flight: Mapping[ClientId, InTraining]) -> _Flights:
        flights, flight = _shared(in_flight.values())
        models, model = _shared(one.model for one in flights)
        reasons = list(dict.fromkeys(one.reason for one in flights))
        return cls(
            list(in_flight),
            flight,
            models,
            model,
            np.array([one.version for one in flights], np.int64),
            np.array([one.event for one in flights], np.int64),
            np.array([one.time for one in flights], np.float64),
            reasons,
            np.array([reasons.index(one.reason) for one in flights], np.int64),
            np.array([one.paused for one in flights], np.float64),
        )

    def in_flight(self) -> dict[ClientId, InTraining]:
        flights = [
            InTraining(self.models[model], version, event, time, self.reasons[why], paused)
            for model, version, event, time, why, paused in zip(
                self.model.tolist(),
                self.version.tolist(),
                self.event.tolist(),
                self.time.tolist(),
                self.reason.tolist(),
                self.paused.tolist(),
                strict=True,
            )
        ]
        own = map(flights.__getitem__, self.flight.tolist())
        return dict(zip(self.clients, own, strict=True))


def _shared(objects: Iterable[T]) -> tuple[list[T], Ints]:
    """Return each object once, and the position of every given object among them."""
    everything = list(objects)
    once = {id(one): one for one in everything}
    place = dict(zip(once, range(len(once)), strict=True))
    positions = np.array(list(map(place.__getitem__, map(id, everything))), np.int64)
    return list(once.values()), positions


@dataclass
class _Moments:
    """Clients by the moment at which something is due: the columns of a heap of the loop."""

    time: Floats
    turn: Ints
    clients: list[ClientId]

    @classmethod
    def of(cls, heap: Sequence[tuple[float, int, ClientId]]) -> _Moments:
        times, turns, clients = zip(*heap, strict=True) if heap else ((), (), ())
        return cls(np.array(times, np.float64), np.array(turns, np.int64), list(clients))

    def heap(self) -> list[tuple[float, int, ClientId]]:
        return list(zip(self.time.tolist(), self.turn.tolist(), self.clients, strict=True))


@dataclass
class _Content:
    """What a checkpoint holds, in the form of its files.

    The clients in training and those that wait are columns, because a million of them take far
    longer one by one; the timeline has the rest.
    """

    timeline: Timeline
    flights: _Flights
    due: _Moments
    offline: _Moments
    state: Any
    receivers: str


class Checkpoints:
    """The checkpoint of a run folder, in `checkpoint/<event>/`; there is at most one at a time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._remedy = f"remove {folder / 'checkpoint'} to run this seed from its beginning"
        self._folders = NumberedFolders(
            folder / "checkpoint",
            number_key="event",
            required=("log",),
            remedy=self._remedy,
        )
        self._clock = clock
        self._next = clock() + EVERY_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return self._clock() >= self._next

    def write(self, simulation: Simulation, log: Position) -> None:
        """Save under a new name, rename, then remove the older checkpoint."""
        begun = self._clock()
        saved = simulation.save()
        timeline = saved.timeline
        with paused_collection():
            content = _Content(
                replace(timeline, in_flight={}, due=[], offline=[]),
                _Flights.of(timeline.in_flight),
                _Moments.of(timeline.due),
                _Moments.of(timeline.offline),
                saved.state,
                saved.receivers,
            )
            self._folders.write(
                timeline.event, lambda draft: snapshot.save(content, draft), {"log": list(log)}
            )
        spent = self._clock() - begun
        self._next = self._clock() + max(EVERY_SECONDS, spent / LARGEST_SHARE)

    def read(self, state: type[Any]) -> Checkpoint | None:
        """Return the newest checkpoint, or None; `state` is the type of the strategy's state."""
        kept = self._folders.read()
        if kept is None:
            return None
        try:
            length, lines, digest = kept.metadata["log"]
            with paused_collection():
                saved = _load(kept.path, state)
            return Checkpoint(saved, Position(int(length), int(lines), digest))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise BadInput(
                f"{kept.path} is not a checkpoint of this strategy in this version of fedraw; "
                f"{self._remedy}"
            ) from None

    @property
    def event(self) -> int | None:
        """The number of arrivals before the newest checkpoint; None if there is no checkpoint."""
        return max(self._folders.manifests(), default=None)

    def remove(self) -> None:
        """Remove all checkpoints of the run."""
        self._folders.remove()


# Fields of checkpoints of fedraw 0.2 that this version does not read.
_RETIRED = {"timeline": ("copy", "sent"), "flights": ("copies",)}


def _load(folder: Path, state: type[Any]) -> Saved:
    tree, arrays = snapshot.read(folder)

    def part(kind: Any, name: str) -> Any:
        for retired in _RETIRED.get(name, ()):
            tree[name].pop(retired, None)
        return snapshot.unpack(kind, tree[name], arrays)

    timeline = replace(
        part(Timeline, "timeline"),
        in_flight=part(_Flights, "flights").in_flight(),
        due=part(_Moments, "due").heap(),
        offline=part(_Moments, "offline").heap(),
    )
    return Saved(timeline, part(state, "state"), tree["receivers"])
