"""Checkpoints: a run between two arrivals on disk, written atomically and verified when read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraw.core.aggregation import ServingAverage
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Position
from fedraw.simulation.loop import Saved, Simulation, Timeline
from fedraw.storage import snapshot
from fedraw.storage.numbered_folders import NumberedFolders

# Seconds between two checkpoints, at least, and the largest share of the time that they may take.
EVERY_SECONDS = 15.0
LARGEST_SHARE = 0.02


@dataclass(frozen=True)
class Checkpoint:
    """A simulation between two arrivals, and where its log ended then."""

    saved: Saved
    log: Position
    serving: ServingAverage | None = None


@dataclass
class _Content:
    """What a checkpoint holds, in the form of its files."""

    timeline: Timeline
    state: Any
    receivers: str
    serving: ServingAverage | None


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

    def write(
        self, simulation: Simulation, log: Position, serving: ServingAverage | None = None
    ) -> None:
        """Save under a new name, rename, then remove the older checkpoint."""
        begun = self._clock()
        saved = simulation.save()
        content = _Content(saved.timeline, saved.state, saved.receivers, serving)
        self._folders.write(
            saved.timeline.event,
            lambda draft: snapshot.save(content, draft),
            {"log": list(log)},
        )
        spent = self._clock() - begun
        self._next = self._clock() + max(EVERY_SECONDS, spent / LARGEST_SHARE)

    def read(self, state: type[Any]) -> Checkpoint | None:
        """The newest checkpoint, or None; `state` is the type of the strategy's state."""
        kept = self._folders.read()
        if kept is None:
            return None
        try:
            length, lines, digest = kept.metadata["log"]
            saved, serving = _load(kept.path, state)
            return Checkpoint(saved, Position(int(length), int(lines), digest), serving)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(
                f"{kept.path} is not a checkpoint of this strategy in this version of fedraw; "
                f"{self._remedy}"
            ) from None

    def remove(self) -> None:
        """Remove all checkpoints of the run."""
        self._folders.remove()


def _load(folder: Path, state: type[Any]) -> tuple[Saved, ServingAverage | None]:
    tree, arrays = snapshot.read(folder)
    saved = Saved(
        timeline=snapshot.unpack(Timeline, tree["timeline"], arrays),
        state=snapshot.unpack(state, tree["state"], arrays),
        receivers=tree["receivers"],
    )
    return saved, snapshot.unpack(ServingAverage | None, tree.get("serving"), arrays)
