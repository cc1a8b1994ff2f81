"""Outcomes: the values of an artefact and the paper's, computed from the finished runs alone.

Every value is a `Finding`, whatever its source: runs, training-free runs, a computation, or a
measurement that was recorded elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarity_scores
from fedraw.core.update import Update
from fedraw.core.weighting import weights
from fedraw.eventlog.metrics import TAIL as LAST
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec
from fedraw.storage.snapshot import Arrays, pack
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Setup
from fedraw_studies.artefacts import (
    NAMES,
    SUPPORTING,
    Artefact,
    ArtefactRow,
    Basis,
    PaperValue,
    Scale,
)
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.plan import key_of, load_artefacts

# Prefix of a metric: the mean of the last five evaluations instead of the last model's value.
TAIL = "Tail"
# Prefix of a metric: the standard deviation of the last five evaluations of the run's curve.
SWING = "Swing"
_IN_CURVE = {"GlobalAcc": 1, "AvgRare": 2}
_SLOTS = 5
_PARAMETERS = 64

Values = Mapping[int, float | None]  # by seed
Records = Mapping[str, Mapping[int, CellRecord]]  # by a row's label, then by seed


@dataclass(frozen=True)
class Finding:
    """One metric of one row: the paper's value, and ours over the seeds."""

    artefact: str
    row: str
    metric: str
    paper: PaperValue | None  # None: the paper prints no value
    mean: float | None  # None: undefined in some seeds
    sd: float | None
    low: float | None
    high: float | None
    values: Values = field(default_factory=dict, compare=False)
    not_comparable: str | None = None  # why the two are not comparable

    @classmethod
    def of(
        cls, artefact: str, row: str, metric: str, paper: PaperValue | None, values: Values
    ) -> Finding:
        """Summarise the values of all seeds."""
        known = [value for value in values.values() if value is not None]
        complete = known if len(known) == len(values) else []
        # The spread is the population's, so that it can stand beside the paper's.
        mean, sd = (fmean(complete), pstdev(complete)) if complete else (None, None)
        ends = (min(known, default=None), max(known, default=None))
        return cls(artefact, row, metric, paper, mean, sd, *ends, values)

    @property
    def away(self) -> float | None:
        """The distance of the paper's value from our mean, in our standard deviations."""
        if self.paper is None or self.mean is None or not self.sd:
            return None
        distance = fmean(self.paper.values) - self.mean
        return 0.0 if abs(distance) <= self.paper.rounding else distance / self.sd

    @property
    def inside(self) -> bool | None:
        """Whether all of the paper's values are within our mean ± 2 sd or our extremes, rounded."""
        if self.paper is None or self.mean is None or self.sd is None:
            return None
        low, high = self.low or 0.0, self.high or 0.0
        least = min(self.mean - 2 * self.sd, low) - self.paper.rounding
        most = max(self.mean + 2 * self.sd, high) + self.paper.rounding
        return all(least <= value <= most for value in self.paper.values)

    def repeats(self, other: Finding) -> bool:
        """Return whether the other finding has the same values, ours and the paper's (rounded)."""
        ours = [(own.mean, own.sd, own.low, own.high) for own in (self, other)]
        if self.paper is None or other.paper is None or ours[0] != ours[1]:
            return False
        rounding = max(self.paper.rounding, other.paper.rounding)
        pairs = zip(self.paper.values, other.paper.values, strict=False)
        same_length = len(self.paper.values) == len(other.paper.values)
        return same_length and all(abs(a - b) <= rounding for a, b in pairs)


@dataclass(frozen=True)
class RowOutcome:
    """One row: its metrics over the finished seeds, and the records of its runs."""

    label: str
    dataset: str  # emnist, cifar10, ham10000 or isic2019, even if the scale replaces it
    method: str  # as the paper calls it
    metrics: Mapping[str, Finding]
    seeds: tuple[int, ...]  # that are finished
    missing: tuple[int, ...] = ()  # that are not
    key: str = ""  # of its spec
    records: Mapping[int, CellRecord] = field(default_factory=dict)  # by seed

    def values(self, metric: str) -> dict[int, float | None]:
        """Return any metric of the runs by seed, whether it is a column of the artefact or not."""
        return {seed: value_of(record, metric) for seed, record in self.records.items()}


@dataclass(frozen=True)
class Outcome:
    """An artefact with the values that are known so far."""

    artefact: Artefact
    scale: str
    rows: tuple[RowOutcome, ...]

    @property
    def name(self) -> str:
        """The name of the artefact."""
        return self.artefact.name

    @property
    def is_begun(self) -> bool:
        """Whether any seed of any row is finished."""
        return any(row.seeds for row in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether all seeds of all rows are finished."""
        return not any(row.missing for row in self.rows)

    @property
    def runs(self) -> tuple[int, int]:
        """The number of its finished runs, and the number that it needs; shared runs count once."""
        done = {(row.key, seed) for row in self.rows for seed in row.records}
        missing = {(row.key, seed) for row in self.rows for seed in row.missing}
        return len(done), len(done | missing)

    def row(self, label: str) -> RowOutcome:
        """Return the row with this label."""
        return next(row for row in self.rows if row.label == label)


def outcomes(
    cells: CellFiles,
    scale: Scale | str,
    names: Sequence[str] = NAMES,
    *,
    skip_damaged: bool = False,
) -> list[Outcome]:
    """Return the outcomes of these artefacts, by default of all artefacts of the paper.

    Unfinished runs are missing in them. A damaged line of a file raises BadInput;
    with `skip_damaged` its run is missing as well.
    """
    scale = Scale.named(scale) if isinstance(scale, str) else scale
    if not skip_damaged:
        cells.refuse_damage()
    return [_outcome(artefact, scale, cells) for artefact in load_artefacts(names, scale)]


def supporting_outcomes() -> list[Outcome]:
    """Return the outcomes that claims refer to without runs: counts and measurements."""
    scale, none = Scale.named("paper"), CellFiles(Path())
    return [_outcome(artefact, scale, none) for artefact in load_artefacts(SUPPORTING, scale)]


def value_of(record: CellRecord, metric: str) -> float | None:
    """Return a metric of a single run.

    The value is that of the last model, the mean of the last five evaluations (Tail…), or their
    standard deviation (Swing…).
    """
    if metric.startswith(SWING):
        return _swing(record, metric.removeprefix(SWING))
    tail = metric.startswith(TAIL)
    name = metric.removeprefix(TAIL)
    recall = record.recall_tail if tail else record.recall
    if name == "RareRecall":
        return recall.get(record.rare_labels[0])
    if name in ("WorseRare", "BetterRare"):
        known = [value for label in record.rare_labels if (value := recall.get(label)) is not None]
        if not known or len(known) < len(record.rare_labels):
            return None
        return min(known) if name == "WorseRare" else max(known)
    return (record.tail if tail else record.metrics).get(name)


def _swing(record: CellRecord, metric: str) -> float | None:
    last = [point[_IN_CURVE[metric]] for point in record.curve[-LAST:]]
    known = [value for value in last if value is not None]
    return pstdev(known) if known and len(known) == len(last) else None


def buffer_weights(seed: int, method: str) -> dict[str, float]:
    """Return the weights in a buffer of five with one rare client, from EMNIST's mean scores.

    >>> buffer_weights(42, "FedFa")
    {'RareWeight': 0.2, 'CommonWeight': 0.2}
    """
    if method != "FedRAW":
        return {"RareWeight": 1 / _SLOTS, "CommonWeight": 1 / _SLOTS}
    spec = Spec.from_dict(
        {
            "data": {"name": "emnist-labels"},
            "partition": {"rare_labels": [44, 45, 46]},
            "training": {"kind": "none"},
        }
    )
    clients = draw_clients(spec, Streams(seed))
    scores = list(enumerate(rarity_scores(clients.table)))
    rare = fmean(float(score) for client, score in scores if client in clients.rare)
    common = fmean(float(score) for client, score in scores if client not in clients.rare)
    heavy, light, *_ = weights([rare] + [common] * (_SLOTS - 1)).tolist()
    return {"RareWeight": heavy, "CommonWeight": light}


def model_copies(strategy: str, clients: int, buffer: int = 10) -> float:
    """Count the models in a strategy's state after every client has sent two updates.

    An array counts by its bytes, so a sum in double precision is two models.

    >>> model_copies("fedraw", clients=30), model_copies("fedraw", clients=60)
    (13.0, 13.0)
    """
    method = CATALOG[strategy].make({"buffer": buffer})
    table = LabelTable.from_counts({f"client {i}": {"label": 1} for i in range(clients)})
    model = np.zeros(_PARAMETERS, np.float32)
    state, _ = method.start(Setup(model, table))
    for turn in range(2 * clients):
        vector = np.full(_PARAMETERS, turn, np.float32)
        update = Update(table.clients[turn % clients], state.version, vector, 1)
        state, _ = method.step(state, Arrived(update))
    kept = Arrays()
    pack(state, kept)
    vectors = [array for array in kept.values() if array.size == _PARAMETERS]
    return sum(array.nbytes for array in vectors) / model.nbytes


def _outcome(artefact: Artefact, scale: Scale, cells: CellFiles) -> Outcome:
    if artefact.basis is not Basis.RUNS:
        rows = tuple(_row_without_runs(row, artefact) for row in artefact.rows)
        return Outcome(artefact, scale.name, rows)
    keys = {row.label: key_of(row.spec) for row in artefact.rows}
    records: dict[str, dict[int, CellRecord]] = {}
    for row in artefact.rows:
        found = {seed: cells.read(f"{keys[row.label]}-{seed}") for seed in row.seeds}
        records[row.label] = {seed: r for seed, r in found.items() if r is not None}
    rows = tuple(_row(row, artefact, keys[row.label], records) for row in artefact.rows)
    return Outcome(artefact, scale.name, rows)


def _row(row: ArtefactRow, artefact: Artefact, key: str, records: Records) -> RowOutcome:
    own = records[row.label]
    values = {metric: {s: _value(row, metric, s, records) for s in own} for metric in row.paper}
    missing = tuple(seed for seed in row.seeds if seed not in own)
    metrics = _findings(row, artefact, values)
    return RowOutcome(row.label, row.dataset, row.method, metrics, tuple(own), missing, key, own)


def _row_without_runs(row: ArtefactRow, artefact: Artefact) -> RowOutcome:
    values: dict[str, Values]
    if artefact.basis is Basis.WEIGHTS:
        by_seed = {seed: buffer_weights(seed, row.method) for seed in artefact.seeds}
        values = {metric: {s: own[metric] for s, own in by_seed.items()} for metric in row.paper}
    else:
        counted = artefact.basis is Basis.COUNT
        fixed = [model_copies(**row.count)] if counted else list(row.values)
        values = {metric: dict(enumerate(fixed)) for metric in row.paper}
    seeds = tuple(next(iter(values.values())))
    metrics = _findings(row, artefact, values)
    return RowOutcome(row.label, row.dataset, row.method, metrics, seeds)


def _findings(
    row: ArtefactRow, artefact: Artefact, values: Mapping[str, Values]
) -> dict[str, Finding]:
    found = {}
    for metric, paper in row.paper.items():
        own = Finding.of(artefact.name, row.label, metric, paper, values[metric])
        found[metric] = replace(own, not_comparable=row.not_comparable.get(metric))
    return found


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


def _less(
    records: Records, one: str | None, other: str | None, seed: int, metric: str
) -> float | None:
    """Return the metric of the row `one` minus that of `other`, for the same seed."""
    pair = [records.get(label or "", {}).get(seed) for label in (one, other)]
    first, second = (None if record is None else value_of(record, metric) for record in pair)
    return None if first is None or second is None else first - second


def _recovered(row: ArtefactRow, metric: str, seed: int, records: Records) -> float | None:
    """Return the percentage of a loss that a defence recovers; undefined without a loss."""
    lost = _less(records, row.honest, row.attacked, seed, metric)
    back = _less(records, row.label, row.attacked, seed, metric)
    return None if lost is None or back is None or lost <= 0 else 100 * back / lost
