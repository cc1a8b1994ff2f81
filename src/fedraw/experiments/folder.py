"""The folder of one run: what is in it, and how it gets there without anything being lost.

spec.toml  events.jsonl  timing.json  model.safetensors  summary.json  and, until it is finished,
checkpoint/
"""

from __future__ import annotations

import json
import os
import platform
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors.numpy import load_file

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.disk.event_log import EventLog, Position, Record, read_log
from fedraw.disk.lock import lock
from fedraw.disk.model_file import write_model
from fedraw.errors import BadInput
from fedraw.experiments.toml import flat, to_toml


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "events.jsonl"
        self._spec = path / "spec.toml"
        self._summary = path / "summary.json"

    @property
    def is_finished(self) -> bool:
        return self._summary.exists()

    def refuse_existing(self) -> None:
        """Nothing is overwritten unless it was asked for."""
        if self.log.exists():
            state = "a finished run" if self.is_finished else "an unfinished run"
            raise BadInput(
                f"{self.path} already holds {state}; continue with --resume, choose another --out, "
                "or replace it with --force"
            )

    def refuse_other_spec(self, tables: dict[str, Any]) -> None:
        """A run can only be resumed as what it was."""
        try:
            before = tomllib.loads(self._spec.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise BadInput(f"cannot resume: {self._spec} cannot be read: {problem}") from None
        then, now = flat(before), flat(json.loads(json.dumps(tables)))
        changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        if changed:
            key = changed[0]
            raise BadInput(
                f"cannot resume {self.path}: its {key} was {then.get(key)!r} and is now "
                f"{now.get(key)!r}; use the same spec, another --out, or --force to start anew"
            )

    def refuse_other_data(self, start: Record) -> None:
        """The same spec may name a file whose content has changed."""
        before = next(iter(read_log(self.log)), {})
        for key, what in (("data", "images or labels have"), ("weights", "their file has")):
            if before.get(key) != start.get(key):
                raise BadInput(
                    f"cannot resume {self.path}: its {key} are not what they were ({what} "
                    "changed); restore them, or use --force to start anew"
                )

    @contextmanager
    def new_log(self, tables: dict[str, Any]) -> Iterator[EventLog]:
        """Begin from nothing."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.log.open("ab")
        except OSError as problem:
            raise BadInput(
                f"cannot write to {self.path}: {problem.strerror}; choose another --out"
            ) from None
        with file:
            self._lock(file)
            for stale in ("summary.json", "timing.json", "model.safetensors"):
                (self.path / stale).unlink(missing_ok=True)
            self._spec.write_text(to_toml(tables), encoding="utf-8")
            file.truncate(0)
            file.seek(0, os.SEEK_END)
            yield EventLog(file)

    @contextmanager
    def cut_log(self, position: Position) -> Iterator[EventLog]:
        """Continue the log at a position that was verified: what came later happens again."""
        with self.log.open("ab") as file:
            self._lock(file)
            file.truncate(position.length)
            file.seek(0, os.SEEK_END)
            yield EventLog(file, position)

    def _lock(self, file: IO[bytes]) -> None:
        lock(file, self.path, "wait for it, or choose another --out")

    def write_results(
        self, summary: dict[str, Any], model: Vector, layout: Layout | None, seconds: float
    ) -> None:
        if layout is not None:
            write_model(model, layout, self.path / "model.safetensors")
        timing = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "events_per_second": round(summary["events"] / seconds, 1),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        (self.path / "timing.json").write_text(json.dumps(timing, indent=2) + "\n")
        # Last, and in one move: where it stands, the run is whole.
        draft = self.path / "summary.json.part"
        draft.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._summary)

    def read_results(self, layout: Layout | None) -> tuple[dict[str, Any], Vector]:
        """The summary and the model of a finished run."""
        try:
            summary: dict[str, Any] = json.loads(self._summary.read_text(encoding="utf-8"))
            if layout is None:
                return summary, np.zeros(0, np.float32)
            tensors = load_file(self.path / "model.safetensors")
            return summary, np.concatenate([tensors[s.name].ravel() for s in layout.segments])
        except Exception as problem:  # safetensors has an exception of its own
            raise BadInput(
                f"{self.path} is finished, but its results cannot be read: {problem}; "
                "run it again with --force"
            ) from None
