"""Cells: finished runs, one line of JSON each, in one file for each study, `OUT/<study>.jsonl`.

A run that several studies share stands once, in the file of the study under which it ran. Readers
therefore look into the files of all studies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.core.text import several
from fedraw.errors import BadInput
from fedraw.eventlog.records import EvaluationRecord
from fedraw.eventlog.state import RunState
from fedraw.experiment.run_folder import RunFolder
from fedraw.storage.files import atomic_write, sync
from fedraw_studies.artefacts import STUDIES
from fedraw_studies.plan import Planned, key_of_settings, settings_of

# Decimals of a curve's percentages, and of all other fractions.
_CURVE_DECIMALS, _DECIMALS = 2, 6


@dataclass(frozen=True)
class CellRecord:
    """The stored part of a run: enough for all tables and figures, and small enough to commit.

    A line leaves out fields that have their defaults, and what follows from others: the influence
    of a label from that of the clients and their labels, the name of a run from its settings.
    """

    key: str
    seed: int
    spec: Mapping[str, Any]  # the settings that its key is made of
    metrics: Mapping[str, float | None]  # of the last model
    tail: Mapping[str, float | None]  # the mean of the last five evaluations
    recall: Mapping[str, float | None]  # by label, in the order of the labels
    curve: Sequence[tuple[int, float | None, float | None]]  # event, GlobalAcc, AvgRare
    influence: Mapping[str, float]  # by client
    data: Mapping[str, Any]  # the number of samples and their fingerprint
    fedraw: str
    seconds: float
    date: str
    cores: int | None
    machine: str
    confusion: Mapping[str, Sequence[int]] = field(default_factory=dict)  # rows of the rare labels
    rejected: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)
    # The mean of the last five evaluations, by rare label; the oldest runs do not have it.
    recall_tail: Mapping[str, float | None] = field(default_factory=dict)
    # By evaluation: the virtual time, and the recall of each rare label; older runs have neither.
    times: Sequence[float] = field(default_factory=list)
    rare_curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    # Why the last model could not change any more; older runs do not have it.
    final: str | None = None

    @property
    def name(self) -> str:
        """The name of the run: its key and its seed."""
        return f"{self.key}-{self.seed}"

    @property
    def events(self) -> int:
        """The number of its events; the last model is always evaluated."""
        return self.curve[-1][0]

    @property
    def rare_labels(self) -> tuple[str, ...]:
        """The names of the rare labels of the metrics."""
        labels = list(self.recall)
        return tuple(labels[i] for i in _rare(self.spec, labels))


# The fields that every line has.
_NEEDED = tuple(
    own.name
    for own in fields(CellRecord)
    if own.default is MISSING and own.default_factory is MISSING
)


class _Line(NamedTuple):
    """A line of a file, with its run or the reason why it cannot be used."""

    path: Path
    text: bytes
    found: CellRecord | str


class CellFiles:
    """The finished runs of a folder.

    A command appends the line of each run as soon as it is finished, and sorts the lines when it
    starts and when it ends. A process that is killed while it appends leaves an incomplete last
    line. Readers ignore that line and sorting drops it. Its run folder is still there, because it
    is removed only when the line is on the disk, so that the run is not lost.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._cells: dict[str, CellRecord] | None = None  # None: not read yet
        self._paths: dict[str, Path] = {}
        self._damage: list[str] = []

    def path(self, study: str) -> Path:
        """Return the file of a study."""
        return self.out / f"{study}.jsonl"

    def names(self, *studies: str) -> set[str]:
        """Return the names of all finished runs, or of those in the files of these studies."""
        wanted = set(map(self.path, studies or STUDIES))
        return {name for name in self._read() if self._paths[name] in wanted}

    def read(self, name: str) -> CellRecord | None:
        """Return a finished run, or None if there is none."""
        return self._read().get(name)

    def damage(self) -> list[str]:
        """Return a message about each line that cannot be used."""
        self._read()
        return self._damage

    def refuse_damage(self) -> None:
        """Raise BadInput if a line cannot be used."""
        if damage := self.damage():
            raise BadInput("\n".join(damage))

    def write(self, record: CellRecord, study: str) -> None:
        """Append a run to the file of a study; the run is on the disk when this returns."""
        cells = self._read()
        if record.name in cells:
            raise ValueError(f"the run {record.name} is in {self.out} already")
        path = self.path(study)
        self.out.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            before, rest = file.tell(), line_of(record)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:  # such as a full disk
                file.truncate(before)
                raise
        if before == 0:
            sync(self.out)
        cells[record.name], self._paths[record.name] = record, path

    def tidy(self) -> None:
        """Read the files again, and sort their lines by key and seed; call it before writing.

        A damaged line raises BadInput.
        """
        lines = list(self._lines())
        self._keep(lines)
        self.refuse_damage()
        for path in filter(Path.exists, map(self.path, STUDIES)):
            text = b"".join(_sorted(line for line in lines if line.path == path))
            if text != path.read_bytes():
                atomic_write(path, text)

    def _read(self) -> dict[str, CellRecord]:
        return self._keep(self._lines()) if self._cells is None else self._cells

    def _keep(self, lines: Iterable[_Line]) -> dict[str, CellRecord]:
        self._cells, self._paths, self._damage = {}, {}, []
        for line in lines:
            if isinstance(line.found, CellRecord):
                self._cells[line.found.name] = line.found
                self._paths[line.found.name] = line.path
            else:
                self._damage.append(line.found)
        return self._cells

    def _lines(self) -> Iterator[_Line]:
        """Yield the lines of all files; of equal lines the first, and no incomplete last line."""
        known: dict[str, tuple[str, bytes]] = {}
        for path in map(self.path, STUDIES):
            for number, text in enumerate(_split(path), 1):
                where = f"{path}, line {number}"
                try:
                    found: CellRecord | str = _record(text)
                except BadInput as problem:
                    found = f"{where} cannot be used: {problem}; restore or delete the line"
                if isinstance(found, CellRecord):
                    before, same = known.setdefault(found.name, (where, text))
                    if before != where and same == text:
                        continue
                    if before != where:
                        found = (
                            f"{where} and {before} have different results of the same run, "
                            f"{found.name}; delete one of these lines"
                        )
                yield _Line(path, text, found)


def record_of(planned: Planned, folder: Path) -> CellRecord:
    """Make the record of a finished run folder."""
    run = RunFolder(folder)
    summary, _ = run.read_results(None)
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    state = RunState.read(run.log)
    spec = settings_of(planned.spec)
    labels = list(summary["recall"])
    rare = [labels[i] for i in _rare(spec, labels)]
    assert state.start is not None
    return CellRecord(
        key=planned.key,
        seed=planned.seed,
        spec=spec,
        metrics=_rounded(summary["metrics"]),
        tail=_rounded(summary["tail"]),
        recall=_rounded(summary["recall"]),
        curve=[_point(evaluation) for evaluation in state.evaluations],
        influence=_rounded(summary["influence"]),
        data=state.start.data or {},
        fedraw=version("fedraw"),
        seconds=timing["seconds"],
        date=timing["date"],
        cores=timing["cores"],
        machine=timing["machine"],
        confusion=_rows(summary.get("confusion"), rare, labels),
        rejected=summary["rejected"],
        notes=summary["notes"],
        recall_tail=_rounded({label: summary["tail_recall"].get(label) for label in rare}),
        times=[round(evaluation.time, 3) for evaluation in state.evaluations],
        rare_curves={
            label: [_percent(own.recall.get(label)) for own in state.evaluations] for label in rare
        },
        final=summary.get("final"),
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


def line_of(record: CellRecord) -> bytes:
    """Return the line of a record."""
    content = {own.name: getattr(record, own.name) for own in fields(CellRecord)}
    kept = {name: value for name, value in content.items() if name in _NEEDED or value}
    return json.dumps(kept, separators=(",", ":")).encode() + b"\n"


def _sorted(lines: Iterable[_Line]) -> list[bytes]:
    found = ((line.found, line.text) for line in lines if isinstance(line.found, CellRecord))
    return [text for _, _, text in sorted((run.key, run.seed, text) for run, text in found)]


def _split(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, none if there is no file."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as problem:
        raise BadInput(f"cannot read {path}: {problem.strerror}") from None
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line
        elif _is_complete(line):  # an editor removed the end of the line
            yield line + b"\n"


def _is_complete(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _record(line: bytes) -> CellRecord:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise BadInput(str(problem)) from None
    if not isinstance(content, dict):
        raise BadInput("it is not a JSON object")
    if absent := [name for name in _NEEDED if name not in content]:
        raise BadInput(f"it has no {several(absent)}")
    try:
        record = CellRecord(**{**content, "curve": [tuple(point) for point in content["curve"]]})
    except TypeError as problem:
        raise BadInput(str(problem)) from None
    if key_of_settings(record.spec) != record.key:
        raise BadInput(f"its spec is not that of its key {record.key}")
    return record
