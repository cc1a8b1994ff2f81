"""Cells: each finished run as one small file, `OUT/cells/<key>-<seed>.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedraw.core.text import several
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import EvaluationRecord, StartRecord
from fedraw.experiment.run_folder import RunFolder
from fedraw.experiment.spec import Spec
from fedraw.storage.files import atomic_write
from fedraw_studies.plan import Planned, key_of

FORMAT = 1
# Decimals of a curve's percentages, and of all other fractions.
_CURVE_DECIMALS, _DECIMALS = 2, 6


@dataclass(frozen=True)
class CellRecord:
    """The stored part of a run: enough for all tables and figures, and small enough to commit."""

    key: str
    seed: int
    name: str
    spec: Mapping[str, Any]
    metrics: Mapping[str, float | None]  # of the last model
    tail: Mapping[str, float | None]  # the mean of the last five evaluations
    recall: Mapping[str, float | None]  # by label, in the order of the labels
    confusion: Mapping[str, Sequence[int]]  # the rows of the rare labels
    curve: Sequence[tuple[int, float | None, float | None]]  # event, GlobalAcc, AvgRare
    influence: Mapping[str, float]
    label_influence: Mapping[str, Mapping[str, float]]
    events: int
    rejected: Mapping[str, int]
    notes: Sequence[str]
    data: Mapping[str, Any]  # the number of samples and their fingerprint
    fedraw: str
    seconds: float
    date: str
    cores: int | None
    machine: str
    # The mean of the last five evaluations, by rare label; older cells do not have it.
    recall_tail: Mapping[str, float | None] = field(default_factory=dict)
    # By evaluation: the virtual time, and the recall of each rare label; older cells have neither.
    times: Sequence[float] = field(default_factory=list)
    rare_curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    # Why the last model could not change any more; older cells do not have it.
    final: str | None = None
    # Metrics of the serving average, if the spec asks for one.
    serving: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def rare_labels(self) -> tuple[str, ...]:
        """The names of the rare labels of the metrics."""
        labels = list(self.recall)
        return tuple(labels[i] for i in _rare(self.spec, labels))


class CellFiles:
    """The folder of finished cells."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "cells"

    def path(self, name: str) -> Path:
        """Return the file of a cell."""
        return self.folder / f"{name}.json"

    def read(self, name: str) -> CellRecord | None:
        """Return a cell, or None if there is none; a damaged cell raises BadInput."""
        path = self.path(name)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as problem:
            raise _damaged(path, str(problem)) from None
        return _record(path, content)

    def write(self, record: CellRecord) -> None:
        """Write a cell atomically, so that an existing file is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(f"{record.key}-{record.seed}")
        atomic_write(path, _text(record).encode())

    def names(self) -> set[str]:
        """Return the names of all cells."""
        return {path.stem for path in self.folder.glob("*.json")}


def record_of(planned: Planned, folder: Path) -> CellRecord:
    """Make the record of a finished run folder."""
    run = RunFolder(folder)
    summary, _ = run.read_results(None)
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    records = [r for r in read_log(run.log) if isinstance(r, StartRecord | EvaluationRecord)]
    spec = planned.spec.to_dict()
    labels = list(summary["recall"])
    rare = [labels[i] for i in _rare(spec, labels)]
    start = next(record for record in records if isinstance(record, StartRecord))
    evaluations = [record for record in records if isinstance(record, EvaluationRecord)]
    return CellRecord(
        key=planned.key,
        seed=planned.seed,
        name=summary["name"],
        spec=spec,
        metrics=_rounded(summary["metrics"]),
        tail=_rounded(summary["tail"]),
        recall=_rounded(summary["recall"]),
        confusion=_rows(summary.get("confusion"), rare, labels),
        curve=[_point(evaluation) for evaluation in evaluations],
        influence=_rounded(summary["influence"]),
        label_influence=_rounded(summary["label_influence"]),
        events=summary["events"],
        rejected=summary["rejected"],
        notes=summary["notes"],
        data=start.data or {},
        fedraw=version("fedraw"),
        seconds=timing["seconds"],
        date=timing["date"],
        cores=timing["cores"],
        machine=timing["machine"],
        recall_tail=_rounded({label: summary["tail_recall"].get(label) for label in rare}),
        times=[round(evaluation.time, 3) for evaluation in evaluations],
        rare_curves={
            label: [_percent(own.recall.get(label)) for own in evaluations] for label in rare
        },
        final=summary.get("final"),
        serving=_rounded((summary.get("serving") or {}).get("metrics", {})),
    )


def _rows(
    confusion: Mapping[str, Mapping[str, int]] | None, rare: Sequence[str], labels: Sequence[str]
) -> dict[str, list[int]]:
    """Return the rows of the rare labels, including zeros, in the order of the labels."""
    if confusion is None:
        return {}
    return {label: [confusion.get(label, {}).get(other, 0) for other in labels] for label in rare}


def _rare(spec: Mapping[str, Any], labels: Sequence[str]) -> list[int]:
    """Return the indices of the rare labels of the metrics."""
    measured = spec.get("metrics", {}).get("rare_labels")
    rare = spec["partition"].get("rare_labels", []) if measured is None else measured
    return [label if isinstance(label, int) else labels.index(label) for label in rare]


def _point(evaluation: EvaluationRecord) -> tuple[int, float | None, float | None]:
    values = (evaluation.metrics.get(metric) for metric in ("GlobalAcc", "AvgRare"))
    all_, rare = map(_percent, values)
    return evaluation.event, all_, rare


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, _CURVE_DECIMALS)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(v) for key, v in value.items()}
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _text(record: CellRecord) -> str:
    """Write one line per field, which is compact and gives readable diffs."""
    content = {"format": FORMAT, **asdict(record)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _record(path: Path, content: Any) -> CellRecord:
    if not isinstance(content, dict):
        raise _damaged(path, "it is not a JSON object")
    needed = [
        own.name
        for own in fields(CellRecord)
        if own.default_factory is MISSING and own.default is MISSING
    ]
    if absent := [name for name in ("format", *needed) if name not in content]:
        raise _damaged(path, f"it has no {several(absent)}")
    try:
        found = content.pop("format")
        record = CellRecord(**{**content, "curve": [tuple(point) for point in content["curve"]]})
        key = key_of(Spec.from_dict(record.spec))
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise _damaged(path, str(problem) or type(problem).__name__) from None
    if found != FORMAT:
        raise _damaged(path, f"its format is {found!r}, this fedraw reads {FORMAT}")
    if path.stem != f"{record.key}-{record.seed}" or record.key != key:
        raise _damaged(path, "its spec and seed are not those of its name")
    return record


def _damaged(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} cannot be used: {why}; restore it, delete it, or run its artefact with --force"
    )
