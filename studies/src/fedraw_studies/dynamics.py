"""The paper's training-free numbers again: the same loop and strategies as every run, many seeds.

What is run, and what the paper says of it, is data: `paper/dynamics.toml`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Stat
from fedraw.experiment.cells import Cell
from fedraw.experiment.runner import Result
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import merged
from fedraw_studies.figure import Figure
from fedraw_studies.scales import study_file

# Metrics seed by seed, of each spec.
BySpec = dict[str, list[Mapping[str, float | None]]]


@dataclass(frozen=True)
class Row:
    """One spec, and its metrics with the paper's figures; None: the paper has none."""

    label: str
    spec: Spec
    metrics: Mapping[str, Figure | None]
    minus: Spec | None = None  # the metrics are differences to this one's, seed by seed


@dataclass(frozen=True)
class Artefact:
    """A table of the paper, or one of ours beside it."""

    name: str
    title: str
    note: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Finding:
    """One metric of one row: the paper's figure beside ours over the seeds."""

    artefact: str
    row: str
    metric: str
    paper: Figure | None
    stat: Stat

    @property
    def known(self) -> list[float]:
        return [value for value in self.stat.values if value is not None]

    @property
    def away(self) -> float | None:
        """How far the paper's figure is from our mean, in our standard deviations."""
        if self.paper is None or self.stat.mean is None or not self.stat.sd:
            return None
        distance = fmean(self.paper.values) - self.stat.mean
        return 0.0 if abs(distance) <= self.paper.rounding else distance / self.stat.sd

    @property
    def inside(self) -> bool | None:
        """Whether all the paper's values lie within our mean ± 2 sd or our extremes, rounded."""
        mean, sd = self.stat.mean, self.stat.sd
        if self.paper is None or mean is None or sd is None:
            return None
        least = min(mean - 2 * sd, *self.known) - self.paper.rounding
        most = max(mean + 2 * sd, *self.known) + self.paper.rounding
        return all(least <= value <= most for value in self.paper.values)


def paper_artefacts() -> list[Artefact]:
    """The tables as the paper has them."""
    tables = study_file("dynamics")
    return [_artefact(table, tables["settings"]) for table in tables["artefacts"]]


def dynamics_cells(artefacts: Sequence[Artefact], seeds: int) -> list[Cell]:
    """Every spec once, however many rows it has, on the seeds 1 to `seeds`."""
    if seeds < 1:
        raise BadInput(f"--seeds {seeds} must be at least 1")
    rows = [row for artefact in artefacts for row in artefact.rows]
    wanted = [spec for row in rows for spec in (row.spec, row.minus) if spec is not None]
    specs = {_key(spec): spec for spec in wanted}
    return [Cell(spec, seed) for spec in specs.values() for seed in range(1, seeds + 1)]


def findings(
    artefacts: Sequence[Artefact], cells: Sequence[Cell], results: Sequence[Result]
) -> list[Finding]:
    """What the results of `dynamics_cells` say about each figure."""
    by_spec: BySpec = {}
    for cell, result in zip(cells, results, strict=True):
        by_spec.setdefault(_key(cell.spec), []).append(result.summary["metrics"])
    return [
        Finding(artefact.name, row.label, metric, figure, Stat.of(_values(row, metric, by_spec)))
        for artefact in artefacts
        for row in artefact.rows
        for metric, figure in row.metrics.items()
    ]


def distinct(found: Sequence[Finding]) -> list[Finding]:
    """The figures of the paper that are worth counting, each of them once.

    Left out is a figure that follows from the settings, because every seed gives the same value,
    and one that repeats an earlier one: our values are the same seed by seed, and the paper prints
    the same value up to rounding.
    """
    counted: list[Finding] = []
    for finding in found:
        certain = len(finding.known) > 1 and (finding.stat.sd or 0.0) < 1e-9
        repeats = any(_repeats(earlier, finding) for earlier in counted)
        if finding.inside is not None and not certain and not repeats:
            counted.append(finding)
    return counted


def _repeats(one: Finding, other: Finding) -> bool:
    if one.stat.values != other.stat.values or one.paper is None or other.paper is None:
        return False
    rounding = max(one.paper.rounding, other.paper.rounding)
    pairs = zip(one.paper.values, other.paper.values, strict=False)
    same_length = len(one.paper.values) == len(other.paper.values)
    return same_length and all(abs(a - b) <= rounding for a, b in pairs)


def as_json(found: Sequence[Finding], seeds: int) -> dict[str, Any]:
    return {"artefact": "dynamics", "seeds": seeds, "rows": [_document(f) for f in found]}


def _document(finding: Finding) -> dict[str, Any]:
    paper, known = finding.paper, finding.known
    return {
        "artefact": finding.artefact,
        "row": finding.row,
        "metric": finding.metric,
        "paper": None if paper is None else fmean(paper.values),
        "paper_printed": None if paper is None else paper.printed,
        "mean": finding.stat.mean,
        "sd": finding.stat.sd,
        "min": min(known, default=None),
        "max": max(known, default=None),
        "away": finding.away,
        "inside": finding.inside,
    }


def _artefact(table: Mapping[str, Any], settings: Mapping[str, Any]) -> Artefact:
    rows = tuple(_row(row, settings[row["setting"]]) for row in table["rows"])
    return Artefact(table["name"], table["title"], table["note"], rows)


def _row(row: Mapping[str, Any], setting: Mapping[str, Any]) -> Row:
    spec = _spec(setting, row.get("spec", {}))
    minus = _spec(setting, row["minus"]) if "minus" in row else None
    figures = {metric: Figure.of(printed) for metric, printed in row.get("paper", {}).items()}
    metrics = {**dict.fromkeys(row.get("metrics", ())), **figures}
    return Row(row["label"], spec, metrics, minus)


def _spec(setting: Mapping[str, Any], changes: Mapping[str, Any]) -> Spec:
    return Spec.read(merged({"training": {"kind": "none"}}, setting, changes))


def _values(row: Row, metric: str, by_spec: BySpec) -> list[float | None]:
    own = [seed[metric] for seed in by_spec[_key(row.spec)]]
    if row.minus is None:
        return own
    other = [seed[metric] for seed in by_spec[_key(row.minus)]]
    return [None if a is None or b is None else a - b for a, b in zip(own, other, strict=True)]


def _key(spec: Spec) -> str:
    return json.dumps(spec.tables(), sort_keys=True)
