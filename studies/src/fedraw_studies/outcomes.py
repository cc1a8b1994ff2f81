"""What came out, beside what the paper says: made from the cells on disk alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Stat
from fedraw_studies.artefacts import NAMES, Artefact, Row, load_artefacts
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.concept import concept_weights
from fedraw_studies.figure import Figure
from fedraw_studies.plan import key_of
from fedraw_studies.scales import Scale

# Before a metric's name: the mean of the last five evaluations instead of the last model's.
TAIL = "Tail"

Metrics = Mapping[str, float | None]
Records = Mapping[str, Mapping[int, CellRecord]]  # by a row's label, then by seed
Curve = Sequence[tuple[int, float | None, float | None]]  # event, GlobalAcc, AvgRare


class Measured(NamedTuple):
    """One metric of one row."""

    paper: Figure | None  # None: the paper has none
    not_comparable: str | None  # why the two must not be compared
    ours: Stat  # over the seeds, in their order
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class RowOutcome:
    label: str
    dataset: str  # emnist, cifar10, ham10000 or isic2019, whatever takes its place at this scale
    method: str  # as the paper calls it
    metrics: Mapping[str, Measured]
    seeds: tuple[int, ...]  # that are finished
    missing: tuple[int, ...]  # that are not
    spec: Mapping[str, Any]
    records: Mapping[int, CellRecord]  # by seed: all metrics, tail, recall, confusion, influence

    @property
    def curves(self) -> dict[int, Curve]:
        return {seed: record.curve for seed, record in self.records.items()}

    @property
    def recall(self) -> dict[int, Metrics]:
        """By seed, of every label."""
        return {seed: record.recall for seed, record in self.records.items()}

    def values(self, metric: str) -> dict[int, float | None]:
        """Any metric of the runs by seed, whether the artefact has it or not."""
        return {seed: record.metrics.get(metric) for seed, record in self.records.items()}


@dataclass(frozen=True)
class Outcome:
    artefact: str
    title: str
    caption: str
    scale: str
    columns: tuple[str, ...]
    reductions: Mapping[str, str]  # by the title of the data set
    rows: tuple[RowOutcome, ...]

    @property
    def is_begun(self) -> bool:
        return any(row.seeds for row in self.rows)

    @property
    def is_complete(self) -> bool:
        return not any(row.missing for row in self.rows)

    def row(self, label: str) -> RowOutcome:
        return next(row for row in self.rows if row.label == label)


def outcomes(
    out: Path, scale: Scale | str, names: Sequence[str] = NAMES, *, skip_damaged: bool = False
) -> list[Outcome]:
    """Of these artefacts, by default all of the paper's; what is not run yet is missing in it.

    A damaged cell is an error that names it, or with `skip_damaged` is missing as well.
    """
    scale = Scale.named(scale) if isinstance(scale, str) else scale
    cells = _Reader(CellFiles(out), skip_damaged)
    return [_outcome(artefact, scale, cells) for artefact in load_artefacts(names, scale)]


class _Reader:
    """Reads each cell once."""

    def __init__(self, cells: CellFiles, skip_damaged: bool) -> None:
        self._cells = cells
        self._skip = skip_damaged
        self._read: dict[str, CellRecord | None] = {}

    def __call__(self, name: str) -> CellRecord | None:
        if name not in self._read:
            try:
                self._read[name] = self._cells.read(name)
            except BadInput:
                if not self._skip:
                    raise
                self._read[name] = None
        return self._read[name]


def _outcome(artefact: Artefact, scale: Scale, cells: _Reader) -> Outcome:
    records: dict[str, dict[int, CellRecord]] = {}
    for row in [] if artefact.arithmetic else artefact.rows:
        key = key_of(row.spec)
        found = {seed: cells(f"{key}-{seed}") for seed in row.seeds}
        records[row.label] = {seed: r for seed, r in found.items() if r is not None}
    make = _arithmetic if artefact.arithmetic else _row
    rows = tuple(make(row, artefact, records) for row in artefact.rows)
    parts = (artefact.name, artefact.title, artefact.caption, scale.name, artefact.columns)
    return Outcome(*parts, artefact.reductions, rows)


def _row(row: Row, artefact: Artefact, records: Records) -> RowOutcome:
    own = records[row.label]
    metrics = {
        metric: Measured(
            figure,
            row.not_comparable.get(metric),
            Stat.of([_value(row, metric, seed, records) for seed in own]),
            tuple(own),
        )
        for metric, figure in row.figures.items()
    }
    missing = tuple(seed for seed in row.seeds if seed not in own)
    tables = row.spec.tables()
    return RowOutcome(row.label, row.dataset, row.method, metrics, tuple(own), missing, tables, own)


def _arithmetic(row: Row, artefact: Artefact, records: Records) -> RowOutcome:
    weights = [concept_weights(seed, row.method) for seed in artefact.seeds]
    metrics = {
        metric: Measured(figure, None, Stat.of([w[metric] for w in weights]), artefact.seeds)
        for metric, figure in row.figures.items()
    }
    return RowOutcome(row.label, row.dataset, row.method, metrics, artefact.seeds, (), {}, {})


def _value(row: Row, metric: str, seed: int, records: Records) -> float | None:
    record = records[row.label][seed]
    if row.confusion is not None:
        label = record.rare_labels[row.confusion]
        return float(record.confusion[label][int(metric.removeprefix("as "))])
    if metric.endswith("Lost"):
        return _less(records, row.honest, row.label, seed, metric.removesuffix("Lost"))
    if metric.endswith("Recovered"):
        return _recovered(row, metric.removesuffix("Recovered"), seed, records)
    return _of_run(record, metric)


def _of_run(record: CellRecord, metric: str) -> float | None:
    """A metric that one run alone decides."""
    if metric == "RareRecall":
        return record.recall[record.rare_labels[0]]
    if metric == "WorseRare":
        return _least([record.recall[label] for label in record.rare_labels])
    if metric.startswith(TAIL):
        return record.tail.get(metric.removeprefix(TAIL))
    return record.metrics.get(metric)


def _least(values: Sequence[float | None]) -> float | None:
    """The smallest; undefined if any is."""
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def _less(
    records: Records, one: str | None, other: str | None, seed: int, metric: str
) -> float | None:
    """What `one` has more than `other`, of the same seed."""
    pair = [records.get(label or "", {}).get(seed) for label in (one, other)]
    first, second = (None if record is None else _of_run(record, metric) for record in pair)
    return None if first is None or second is None else first - second


def _recovered(row: Row, metric: str, seed: int, records: Records) -> float | None:
    """The part of the loss that a defence gives back; undefined where nothing was lost."""
    lost = _less(records, row.honest, row.attacked, seed, metric)
    back = _less(records, row.label, row.attacked, seed, metric)
    return None if lost is None or back is None or lost <= 0 else 100 * back / lost
