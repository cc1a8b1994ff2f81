"""Outcomes: the values of an artefact, beside the paper's, made from the cells on disk alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Stat
from fedraw_studies.artefacts import (
    NAMES,
    SUPPORTING,
    Artefact,
    ArtefactRow,
    Basis,
    PaperValue,
    load_artefacts,
)
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.computed import buffer_weights, model_copies
from fedraw_studies.plan import key_of
from fedraw_studies.scales import Scale

# Prefix of a metric: the mean of the last five evaluations instead of the last model's value.
TAIL = "Tail"

Metrics = Mapping[str, float | None]
Records = Mapping[str, Mapping[int, CellRecord]]  # by a row's label, then by seed
Curve = Sequence[tuple[int, float | None, float | None]]  # event, GlobalAcc, AvgRare


class Measured(NamedTuple):
    """One metric of one row: the paper's value and ours."""

    paper: PaperValue | None  # None: the paper prints no value
    not_comparable: str | None  # why the two must not be compared
    ours: Stat  # over the seeds, in their order
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class RowOutcome:
    """One row: its metrics over the finished seeds, and the records of its runs."""

    label: str
    dataset: str  # emnist, cifar10, ham10000 or isic2019, whatever replaces it at this scale
    method: str  # as the paper calls it
    metrics: Mapping[str, Measured]
    seeds: tuple[int, ...]  # that are finished
    missing: tuple[int, ...]  # that are not
    spec: Mapping[str, Any]
    records: Mapping[int, CellRecord]  # by seed

    @property
    def curves(self) -> dict[int, Curve]:
        """The evaluations of each seed's run."""
        return {seed: record.curve for seed, record in self.records.items()}

    @property
    def recall(self) -> dict[int, Metrics]:
        """The recall of every label, by seed."""
        return {seed: record.recall for seed, record in self.records.items()}

    def values(self, metric: str) -> dict[int, float | None]:
        """Return any metric of the runs by seed, also one that is no column of the artefact."""
        return {seed: value_of(record, metric) for seed, record in self.records.items()}


@dataclass(frozen=True)
class Outcome:
    """An artefact with the values that are known so far."""

    artefact: str
    title: str
    caption: str
    scale: str
    columns: tuple[str, ...]
    reductions: Mapping[str, str]  # by the title of the data set
    rows: tuple[RowOutcome, ...]
    basis: Basis = Basis.RUNS
    figure: Mapping[str, Any] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether any seed of any row is finished."""
        return any(row.seeds for row in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether all seeds of all rows are finished."""
        return not any(row.missing for row in self.rows)

    def row(self, label: str) -> RowOutcome:
        """Return the row with this label."""
        return next(row for row in self.rows if row.label == label)


def outcomes(
    out: Path, scale: Scale | str, names: Sequence[str] = NAMES, *, skip_damaged: bool = False
) -> list[Outcome]:
    """Return the outcomes of these artefacts, by default of all of the paper's.

    Runs that are not finished are missing in them. A damaged cell raises BadInput with its name;
    with `skip_damaged` it is missing as well.
    """
    scale = Scale.named(scale) if isinstance(scale, str) else scale
    cells = _Reader(CellFiles(out), skip_damaged)
    return [_outcome(artefact, scale, cells) for artefact in load_artefacts(names, scale)]


def supporting_outcomes() -> list[Outcome]:
    """Return what claims refer to and no run decides: counts and recorded measurements."""
    return outcomes(Path(), "paper", SUPPORTING)


def value_of(record: CellRecord, metric: str) -> float | None:
    """Return a metric that one run alone decides, of its last model or (Tail…) its last five."""
    tail = metric.startswith(TAIL)
    name = metric.removeprefix(TAIL)
    recall = record.recall_tail if tail else record.recall
    if name == "RareRecall":
        return recall.get(record.rare_labels[0])
    if name in ("WorseRare", "BetterRare"):
        return _extreme(min if name == "WorseRare" else max, recall, record.rare_labels)
    return (record.tail if tail else record.metrics).get(name)


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
    if artefact.basis is Basis.RUNS:
        records: dict[str, dict[int, CellRecord]] = {}
        for row in artefact.rows:
            key = key_of(row.spec)
            found = {seed: cells(f"{key}-{seed}") for seed in row.seeds}
            records[row.label] = {seed: r for seed, r in found.items() if r is not None}
        rows = tuple(_row(row, records) for row in artefact.rows)
    else:
        rows = tuple(_row_without_runs(row, artefact) for row in artefact.rows)
    return Outcome(
        artefact.name,
        artefact.title,
        artefact.caption,
        scale.name,
        artefact.columns,
        artefact.reductions,
        rows,
        artefact.basis,
        artefact.figure,
    )


def _row(row: ArtefactRow, records: Records) -> RowOutcome:
    own = records[row.label]
    metrics = {
        metric: Measured(
            paper,
            row.not_comparable.get(metric),
            Stat.of([_value(row, metric, seed, records) for seed in own]),
            tuple(own),
        )
        for metric, paper in row.paper.items()
    }
    missing = tuple(seed for seed in row.seeds if seed not in own)
    tables = row.spec.tables()
    return RowOutcome(row.label, row.dataset, row.method, metrics, tuple(own), missing, tables, own)


def _row_without_runs(row: ArtefactRow, artefact: Artefact) -> RowOutcome:
    if artefact.basis is Basis.WEIGHTS:
        weights = [buffer_weights(seed, row.method) for seed in artefact.seeds]
        seeds, values = artefact.seeds, {m: [w[m] for w in weights] for m in row.paper}
    else:
        counted = artefact.basis is Basis.COUNT
        fixed = [model_copies(**row.count)] if counted else list(row.values)
        seeds, values = tuple(range(len(fixed))), dict.fromkeys(row.paper, fixed)
    metrics = {
        metric: Measured(paper, None, Stat.of(values[metric]), seeds)
        for metric, paper in row.paper.items()
    }
    return RowOutcome(row.label, row.dataset, row.method, metrics, seeds, (), {}, {})


def _value(row: ArtefactRow, metric: str, seed: int, records: Records) -> float | None:
    record = records[row.label][seed]
    if row.confusion is not None:
        label = record.rare_labels[row.confusion]
        return float(record.confusion[label][int(metric.removeprefix("as "))])
    if metric.endswith("Lost"):
        return _less(records, row.honest, row.label, seed, metric.removesuffix("Lost"))
    if metric.endswith("Recovered"):
        return _recovered(row, metric.removesuffix("Recovered"), seed, records)
    return value_of(record, metric)


def _extreme(
    choose: Callable[[list[float]], float], recall: Metrics, labels: Sequence[str]
) -> float | None:
    """The lowest or highest recall of these labels; undefined if any is."""
    known = [value for label in labels if (value := recall.get(label)) is not None]
    return choose(known) if known and len(known) == len(labels) else None


def _less(
    records: Records, one: str | None, other: str | None, seed: int, metric: str
) -> float | None:
    """How much more of a metric the row `one` has than `other`, for the same seed."""
    pair = [records.get(label or "", {}).get(seed) for label in (one, other)]
    first, second = (None if record is None else value_of(record, metric) for record in pair)
    return None if first is None or second is None else first - second


def _recovered(row: ArtefactRow, metric: str, seed: int, records: Records) -> float | None:
    """The percentage of a loss that a defence gives back; undefined where nothing was lost."""
    lost = _less(records, row.honest, row.attacked, seed, metric)
    back = _less(records, row.label, row.attacked, seed, metric)
    return None if lost is None or back is None or lost <= 0 else 100 * back / lost
