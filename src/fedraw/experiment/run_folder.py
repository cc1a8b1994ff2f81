"""The folder of one run, which stays consistent whenever the process ends.

spec.toml          the experiment, written before anything else
events.jsonl       the log
timing.json        the date, the machine and the speed of the run
model.safetensors  the last model
calibrated.safetensors  the last model with a calibrated output layer, with [calibration]
summary.json       written last, with checksums of the log, the model, the spec and itself
checkpoint/        until the run is finished
lock               held by the process that executes the run
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from fedraw.core.layout import Layout
from fedraw.core.removed import without_neutral
from fedraw.core.types import Vector
from fedraw.errors import BadInput, error_context
from fedraw.eventlog.compare import flat
from fedraw.eventlog.log_file import LOG, LogWriter, Position, read_log, verify_log
from fedraw.eventlog.records import Record, StartRecord, to_fields
from fedraw.eventlog.summary import SUMMARY, damaged, end_of_log, read_sealed, seal
from fedraw.experiment.spec import refuse_parts, to_toml
from fedraw.storage.files import atomic_write
from fedraw.storage.lock import FolderLock
from fedraw.storage.snapshot import CALIBRATED, MODEL, write_model

SPEC = "spec.toml"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / LOG
        self._spec = path / SPEC
        self._model = path / MODEL
        self._summary = path / SUMMARY
        self._checkpoint = path / "checkpoint"

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished: the summary is written last."""
        return self._summary.exists()

    @property
    def _can_continue(self) -> bool:
        """Whether a resumed run uses the existing files instead of starting from the beginning."""
        return self.is_finished or self._checkpoint.exists()

    def refuse_existing(self) -> None:
        """Refuse to overwrite a run that is in the folder."""
        logged = self.log.exists() and self.log.stat().st_size > 0
        if logged or self._can_continue:
            state = "a finished run" if self.is_finished else "an unfinished run"
            raise BadInput(
                f"{self.path} already holds {state}; continue with resume=True, choose another "
                "out=..., or replace it with force=True"
            )

    def refuse_other_spec(self, tables: dict[str, Any]) -> None:
        """Refuse to resume a run with another spec."""
        try:
            before = without_neutral(tomllib.loads(self._spec.read_text(encoding="utf-8")))
        except (OSError, ValueError) as problem:
            if not self._can_continue:  # killed before it began
                return
            raise BadInput(
                f"cannot resume {self.path}: {self._spec.name} cannot be read ({problem}); restore "
                "it, or use force=True to start again"
            ) from None
        if not tables.get("parts"):
            with error_context(f"cannot resume {self.path}"):
                refuse_parts(before.get("parts"))
        then, now = flat(before), flat(without_neutral(json.loads(json.dumps(tables))))
        changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        if changed and (before or self._can_continue):
            if self._spec_in_log() not in (None, then):
                raise damaged(self._spec, "was altered since the run began")
            key = changed[0]
            raise BadInput(
                f"cannot resume {self.path}: its {key} was {then.get(key)!r} and is now "
                f"{now.get(key)!r}; use the same spec, another out=..., or force=True to start "
                "again"
            )

    def _spec_in_log(self) -> dict[str, Any] | None:
        """Return the settings at the start of the log; None if there is no readable log."""
        try:
            start = next(read_log(self.log), None)
        except BadInput:
            return None
        if not isinstance(start, StartRecord) or not start.spec:
            return None
        return flat(without_neutral(start.spec))

    def refuse_other_inputs(self, opening: Iterable[Record]) -> None:
        """Refuse to resume a run whose input files have changed.

        `opening` are the records that a new run would write first: the fingerprints of all inputs,
        and the clients.
        """
        for known, record in zip(read_log(self.log), opening, strict=False):
            before, now = to_fields(known), json.loads(json.dumps(to_fields(record)))
            for record_fields in (before, now):
                if "spec" in record_fields:
                    record_fields["spec"] = without_neutral(record_fields["spec"])
            keys = [key for key in {**now, **before} if key != "notes"]
            changed = next((key for key in keys if before.get(key) != now.get(key)), None)
            if changed is not None:
                raise BadInput(
                    f"cannot resume {self.path}: {_input(changed, now)} changed since it was "
                    "begun; restore it, or use force=True to start again"
                )

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder against other processes before anything in it is changed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = FolderLock(self.path, "wait for it, or choose another out=...")
        except OSError as problem:
            raise BadInput(
                f"cannot write to {self.path}: {problem.strerror}; choose another out=..."
            ) from None
        try:
            yield
        finally:
            held.close()

    @contextmanager
    def new_log(self, tables: dict[str, Any]) -> Iterator[LogWriter]:
        """Start a new log in a folder that is locked and has no checkpoint.

        Whenever the process ends, the run in the folder is finished or can be resumed.
        """
        for stale in (SUMMARY, MODEL, CALIBRATED, "timing.json"):
            (self.path / stale).unlink(missing_ok=True)
        atomic_write(self._spec, to_toml(tables).encode())
        with self.log.open("wb") as file:
            yield LogWriter(file)

    @contextmanager
    def cut_log(self, position: Position, tables: dict[str, Any]) -> Iterator[LogWriter]:
        """Continue the log at a verified position; later events are simulated again."""
        atomic_write(self._spec, to_toml(tables).encode())  # it may differ in a comment
        with self.log.open("ab") as file:
            file.truncate(position.length)
            file.seek(0, os.SEEK_END)
            yield LogWriter(file, position)

    def write_results(
        self,
        summary: dict[str, Any],
        model: Vector,
        layout: Layout | None,
        seconds: float,
        log: Position,
        others: Mapping[str, Vector | None] = MappingProxyType({}),
    ) -> None:
        """Write all results to the disk; `log` is the position at the end of the log.

        `others` are models besides the last one, by the names of their files.
        """
        sealed = [self._spec]
        for name, vector in {MODEL: model, **others}.items():
            if layout is not None and vector is not None:
                write_model(vector, layout, self.path / name)
                sealed.append(self.path / name)
        timing = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "events_per_second": round(summary["events"] / seconds, 1),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        atomic_write(self.path / "timing.json", json.dumps(timing, indent=2).encode() + b"\n")
        checksums = {path.name: _sha256(path.read_bytes()) for path in sealed}
        # Written last and atomically: a folder with a summary is complete.
        atomic_write(self._summary, seal(summary, log, checksums))

    def read_results(self, layout: Layout | None) -> tuple[dict[str, Any], Vector]:
        """Verify all files of a finished run, and return its summary and model."""
        sealed = read_sealed(self._summary)
        verify_log(self.log, end_of_log(self.log))
        content = {name: self._verified(name, sha256) for name, sha256 in sealed.sha256.items()}
        if layout is None:
            return sealed.content, np.zeros(0, np.float32)
        try:
            tensors = load(content[MODEL])
            vector = np.concatenate([tensors[s.name].ravel() for s in layout.segments])
        except (KeyError, ValueError, SafetensorError) as problem:
            raise BadInput(f"{self._model} does not fit the model: {problem}") from None
        return sealed.content, vector

    def _verified(self, name: str, sha256: str) -> bytes:
        try:
            content = (self.path / name).read_bytes()
        except OSError as problem:
            raise damaged(self.path / name, f"cannot be read ({problem.strerror})") from None
        if _sha256(content) != sha256:
            raise damaged(self.path / name, f"was altered: its checksum is not that in {SUMMARY}")
        return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _input(key: str, record: dict[str, Any]) -> str:
    """Return the name of the input that a field of the opening records comes from."""
    if record["kind"] != "start":
        return f"the data of client {record.get('client')!r}"
    spec = record["spec"]
    match key:
        case "data" | "labels":
            source = spec["data"].get("path") or spec["data"]["name"]
            section = spec.get("features", {})
            features = section.get("weights", section.get("backbone"))
            return f"its data ({source}{f', features of {features}' if features else ''})"
        case "weights":
            return f"its weights ({spec['training'].get('weights')})"
        case "trace":
            sections = ("speeds", "availability", "membership", "costs")
            traces = [spec.get(name, {}).get("trace") for name in sections]
            return f"its trace ({', '.join(trace for trace in traces if trace)})"
        case "sources":
            names = ", ".join(record.get("sources") or ["own parts"])
            return f"the source of one of its own parts ({names})"
        case _:
            return f"its {key}"
