"""Exports a model from a finished run, or from a server that is running or has stopped.

A server's current model is in its newest snapshot. The best model by the metric of the setting
`keep_best` is in a separate file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors import SafetensorError, safe_open

import fedraw
from fedraw.core.text import one_line
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, find_logs, read_log
from fedraw.eventlog.records import StartRecord
from fedraw.eventlog.state import RunState
from fedraw.storage.files import atomic_file, atomic_write
from fedraw.storage.numbered_folders import NumberedFolders, VerifiedFolder
from fedraw.storage.snapshot import (
    BEST,
    CALIBRATED,
    CONSTANTS,
    MODEL,
    BestFacts,
    named_tensors,
    read_tensors,
    write_tensors,
)

Which = Literal["current", "best", "calibrated"]
CHOICES: tuple[Which, ...] = get_args(Which)
# The end of the names of the files that models are written to.
SUFFIX = ".safetensors"
# A snapshot may be replaced while it is read; another attempt then reads the new one.
ATTEMPTS = 5
_TITLES = {
    "current": "the current global model",
    "best": "the best model so far",
    "calibrated": "the last global model with a calibrated output layer",
}
_FILES = {"current": MODEL, "calibrated": CALIBRATED}


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model, its origin and its last evaluation."""

    which: Which
    tensors: Mapping[str, Any]
    start: StartRecord
    event: int
    version: int | None
    finished: bool
    # The last evaluation of this kind of model at or before the event; empty if there was none.
    evaluated_at: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    recall: Mapping[str, float | None] = field(default_factory=dict)
    best_by: tuple[str, float] | None = None  # a metric, and its value

    @property
    def feature_map(self) -> str | None:
        """The fixed feature map whose outputs the model takes; None if it takes samples."""
        notes = self.start.notes or ()
        return next((note for note in notes if note.startswith("feature map ")), None)

    def metadata(self) -> dict[str, str]:
        """Return the metadata for the header of the file, as text, which safetensors requires."""
        start = self.start
        facts: dict[str, Any] = {
            "which": self.which,
            "best_by": self.best_by and self.best_by[0],
            "method": start.name,
            "event": self.event,
            "version": self.version,
            "finished": self.finished,
            "labels": list(start.labels),
            "rare_labels": list(start.rare_labels),
            "spec": start.spec,
            "seed": start.seed,
            "evaluated_at": self.evaluated_at,
            "metrics": dict(self.metrics),
            "recall": dict(self.recall),
            "fedraw": fedraw.__version__,
        }
        if self.feature_map is not None:
            facts["feature_map"] = self.feature_map
        return {"format": "pt", "fedraw": json.dumps(facts)}

    def card(self, file: Path) -> str:
        """Return a short model card in Markdown."""
        start = self.start
        count = sum(int(np.prod(t.shape)) for t in self.tensors.values())
        best = "" if self.best_by is None else f" by {self.best_by[0]} ({self.best_by[1]:.1f})"
        version = "" if self.version is None else f", version {self.version:,}"
        lines = [
            f"# {_cell(file.name)}",
            "",
            f"This file contains {_TITLES[self.which]}{best} of a federation trained with "
            f"{_cell(start.name)}, after {self.event:,} arrivals{version}. "
            + ("The run is complete." if self.finished else "The run was not complete."),
            "",
            f"- Tensors: {len(self.tensors)}, {count:,} numbers in all.",
            f"- Origin: {start.origin}" + ("" if start.seed is None else f", seed {start.seed}"),
            f"- Labels: {', '.join(map(_cell, start.labels)) or 'not known'}.",
            f"- Labels that the metrics call rare: "
            f"{', '.join(map(_cell, start.rare_labels)) or 'none'}.",
            f"- Exported with fedraw {fedraw.__version__}.",
        ]
        if self.feature_map is not None:
            lines.insert(
                5,
                f"- Inputs: the features of the {_cell(self.feature_map)}, and not the samples. "
                "`FeatureMap.with_head` of fedraw.learning.feature_maps joins both in one module.",
            )
        metrics = {k: v for k, v in self.metrics.items() if v is not None}
        if not metrics:
            lines += ["", "This model was not evaluated."]
        else:
            lines += [
                "",
                f"## Evaluation at arrival {self.evaluated_at:,}",
                "",
                "| metric | value |",
            ]
            lines += ["|---|--:|", *(f"| {_cell(k)} | {v:.2f} |" for k, v in metrics.items())]
        recall = {k: v for k, v in self.recall.items() if v is not None}
        if recall:
            rare = set(map(str, start.rare_labels))
            lines += ["", "| label | recall, % |", "|---|--:|"]
            for label, value in sorted(recall.items(), key=lambda item: item[1]):
                lines.append(f"| {_cell(label)}{' (rare)' * (label in rare)} | {value:.1f} |")
        lines += ["", "## Settings", "", "```json"]
        lines += [json.dumps(start.spec, indent=2).replace("```", "` ` `"), "```", ""]
        return "\n".join(lines)


def _cell(words: object) -> str:
    return one_line(str(words)).replace("|", "\\|").replace("<", "&lt;")


def read_model(folder: Path, which: Which = "current") -> ExportedModel:
    """Read a model from the folder of a seed or of a server, which may be running."""
    logs = find_logs(folder)
    if len(logs) > 1:
        raise BadInput(
            f"{folder} has {len(logs)} runs; give the folder of one of them, such as "
            f"{logs[0].parent}"
        )
    folder = logs[0].parent
    start = _start(logs[0])
    if which == "best":
        return _best(logs[0], start)
    name = _FILES[which]
    if (folder / name).exists():
        return _described(logs[0], start, which, read_tensors(folder / name))
    if not start.is_server or which == "calibrated":
        raise BadInput(_no_file(folder, which, (folder / MODEL).exists() or start.is_server))
    found, tensors = _from_snapshot(folder)
    return _described(logs[0], start, which, tensors, int(found.path.stem))


def export_model(folder: Path, out: Path, which: Which = "current", *, card: bool = True) -> Path:
    """Write a model with its metadata, and a model card beside it; return the card's path."""
    if out.is_dir():
        raise BadInput(f"cannot write {out}: it is a folder; name a file in it with out=...")
    path = out.with_suffix(".md")
    if out.suffix not in ("", SUFFIX):
        raise BadInput(
            f"cannot write {out}: a model is written as safetensors and in no other form; name the "
            f"file {out.with_suffix(SUFFIX).name}, which safetensors.torch.load_file reads"
        )
    for file in (out, path) if card else (out,):
        _refuse_in_a_run(file)
    model = read_model(folder, which)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as draft:
            write_tensors(model.tensors, draft, model.metadata())
        if card:
            atomic_write(path, model.card(out).encode(errors="backslashreplace"))
    except OSError as problem:
        raise BadInput(f"cannot write {out}: {problem.strerror}; choose another out=...") from None
    return path


def _refuse_in_a_run(file: Path) -> None:
    """Refuse a file in the folder of any run, because it may replace that run's own model."""
    run = next((own for own in file.resolve().parents if (own / LOG).exists()), None)
    if run is not None:
        raise BadInput(
            f"{file} is in {run}, the folder of a run, whose own files an export must not "
            "replace; name a file in another folder with out=..."
        )


def _start(log: Path) -> StartRecord:
    first = next(read_log(log, allow_cut_off=True), None)
    if not isinstance(first, StartRecord):
        raise BadInput(
            f"{log} is empty, because training has not started; export the model after the start"
        )
    return first


def _no_file(folder: Path, which: Which, finished: bool) -> str:
    if which == "calibrated" and finished:
        return f"{folder} has no calibrated model; a simulation with [calibration] writes one"
    return (
        f"{folder} has no model: a simulation writes its model at its end, and a run without "
        "training has none; wait for the end, or continue the run with resume=True"
    )


def _described(
    log: Path,
    start: StartRecord,
    which: Which,
    tensors: Mapping[str, Any],
    event: int | None = None,
) -> ExportedModel:
    """Add the facts that the log has about the model at an event; by default, at the end."""
    state = RunState(bounded=True)
    for record in read_log(log, allow_cut_off=True):
        if event is not None and getattr(record, "event", 0) > event:
            break
        state.apply(record)
    evaluated: dict[str, Any] = {}
    if state.recent:
        last = state.recent[-1]
        values = {"metrics": last.metrics, "recall": last.recall}
        if which != "current":
            recorded = getattr(last, which) or {}
            values = {part: recorded.get(part, {}) for part in values}
        evaluated = {"evaluated_at": last.event, **values}
    version = state.version if state.accepted or state.recent else None
    facts = (state.events, version, state.finished)
    return ExportedModel(which, tensors, start, *facts, **evaluated)


def _best(log: Path, start: StartRecord) -> ExportedModel:
    path = log.parent / BEST
    if not path.exists():
        raise BadInput(
            f"{log.parent} has no best model; a server keeps one with its setting keep_best, such "
            "as keep_best = 'AvgRare', from its first evaluation on"
        )
    tensors, facts = read_tensors(path), BestFacts.read(path)
    if facts is None:
        raise BadInput(
            f"{path} is not a best model of this fedraw version; export it with the version of "
            "the server"
        )
    return ExportedModel(
        "best",
        tensors,
        start,
        facts.event,
        facts.version,
        finished=RunState.of(read_log(log, allow_cut_off=True), bounded=True).finished,
        evaluated_at=facts.event,
        metrics=facts.metrics,
        recall=facts.recall,
        best_by=(facts.metric, facts.value),
    )


def _from_snapshot(folder: Path) -> tuple[VerifiedFolder, dict[str, Any]]:
    folders = NumberedFolders(
        folder / "checkpoint", number_key="event", required=("tensors",), remedy="try again"
    )
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            found = folders.read()
            if found is None:
                raise BadInput(
                    f"{folder} has no snapshot, because training has not started; export the model "
                    "after the start"
                )
            return found, _tensors(folder, found)
        except (OSError, SafetensorError) as replaced:
            problem = replaced
        except BadInput as damaged:
            problem = damaged
            if not (folder / "checkpoint").is_dir():
                break
    raise BadInput(f"cannot read the model of {folder}: {problem}")


def _tensors(folder: Path, found: VerifiedFolder) -> dict[str, Any]:
    tree = json.loads((found.path / "state.json").read_text(encoding="utf-8"))
    model = tree.get("model")
    if model is None:
        raise BadInput(f"{found.path} has no model; start the server again")
    with safe_open(found.path / "state.safetensors", "numpy") as file:
        vector = file.get_tensor(model["array"])
    file = folder / CONSTANTS
    constants = read_tensors(file) if file.exists() else {}
    return {**named_tensors(vector, found.metadata["tensors"]), **constants}
