"""All runs at or below a folder, followed together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedraw.experiments.compare import find_logs, identity, without_seeds
from fedraw.experiments.follow import Follower
from fedraw.experiments.names import distinct_names
from fedraw.experiments.status import Status
from fedraw.experiments.tail import modified

# After the last of several runs, seconds until none is expected to follow.
SETTLED = 5.0


class Watched:
    """All runs at or below a folder, also those that begin later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[Path, Follower] = {}
        self._names: dict[Path, str] = {}

    def look(self, seconds: float | None = None) -> bool:
        """Take in what is new, the latest run first; tell whether that was all."""
        logs = find_logs(self._folder)
        for gone in self._runs.keys() - set(logs):
            self._runs[gone].refuse_shortened()
        self._runs = {log: self._runs.get(log) or Follower(log) for log in logs}
        until = None if seconds is None else time.monotonic() + seconds
        complete = True
        for run in sorted(self._runs.values(), key=lambda run: modified(run.log), reverse=True):
            # However little time is left, a run's first piece is read: its name is in it.
            left = None if until is None else max(0.0, until - time.monotonic())
            complete = run.look(left) and complete
        self._name()
        return complete

    @property
    def latest(self) -> Follower:
        """The run whose log was written last."""
        return max(self._runs.values(), key=lambda run: run.written)

    def is_over(self, now: float) -> bool:
        """Whether all are finished, and no other seed has begun in the moment after."""
        alone = len(self._runs) == 1 and self._folder in {self.latest.folder, self.latest.log}
        settled = alone or now - self.latest.written > SETTLED
        return settled and all(run.summary.finished for run in self._runs.values())

    def statuses(self, now: float) -> list[Status]:
        return [run.status(now, self._names.get(log)) for log, run in self._runs.items()]

    def as_json(self, now: float) -> dict[str, Any]:
        """Everything that the screen shows, of every run."""
        runs = [
            {**asdict(run.status(now, self._names.get(log))), **asdict(run.detail())}
            for log, run in self._runs.items()
        ]
        return {"latest": str(self.latest.folder), "runs": [_plain(run) for run in runs]}

    def _name(self) -> None:
        """Runs of one strategy that differ in other keys are told apart, as in a comparison."""
        started = {log: run.start for log, run in self._runs.items() if run.start}
        if started.keys() == self._names.keys():
            return
        keys = {log: identity(start) for log, start in started.items()}
        one_each = {keys[log]: start for log, start in started.items()}
        names = distinct_names(
            [str(start.get("name")) for start in one_each.values()],
            [without_seeds(start) for start in one_each.values()],
        )
        shown = dict(zip(one_each, names, strict=True))
        self._names = {log: shown[key] for log, key in keys.items()}


def _plain(value: Any) -> Any:
    """As JSON has it: named tuples as objects, paths as text."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
