"""The paper's training-free values: many seeds of the common loop, without a model.

`paper/dynamics.toml` says what is run and what the paper prints. The runs take seconds, so no cell
is kept of them: their summary is one file, `OUT/dynamics.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Stat
from fedraw.experiment.cells import Cell, CellProgress, cores, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.runner import Result
from fedraw_studies.artefacts import Artefact, ArtefactRow, PaperValue, load_dynamics
from fedraw_studies.plan import key_of

# Metrics seed by seed, by the key of a spec.
BySpec = dict[str, list[Mapping[str, float | None]]]


@dataclass(frozen=True)
class Finding:
    """One metric of one row: the paper's value beside ours over the seeds."""

    artefact: str
    row: str
    metric: str
    paper: PaperValue | None
    mean: float | None  # None: undefined in some seeds
    sd: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(
        cls,
        artefact: str,
        row: str,
        metric: str,
        paper: PaperValue | None,
        values: Sequence[float | None],
    ) -> Finding:
        """Summarise the values of all seeds."""
        stat, known = Stat.of(values), [value for value in values if value is not None]
        ends = (min(known, default=None), max(known, default=None))
        return cls(artefact, row, metric, paper, stat.mean, stat.sd, *ends)

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Finding:
        """Read what `as_json` wrote."""
        printed = table["paper_printed"]
        paper = None if printed is None else PaperValue.of(printed)
        ours = (table["mean"], table["sd"], table["min"], table["max"])
        return cls(table["artefact"], table["row"], table["metric"], paper, *ours)

    @property
    def away(self) -> float | None:
        """Distance of the paper's value from our mean, in our standard deviations."""
        if self.paper is None or self.mean is None or not self.sd:
            return None
        distance = fmean(self.paper.values) - self.mean
        return 0.0 if abs(distance) <= self.paper.rounding else distance / self.sd

    @property
    def inside(self) -> bool | None:
        """Whether all the paper's values lie within our mean ± 2 sd or our extremes, rounded."""
        if self.paper is None or self.mean is None or self.sd is None:
            return None
        low, high = self.low or 0.0, self.high or 0.0
        least = min(self.mean - 2 * self.sd, low) - self.paper.rounding
        most = max(self.mean + 2 * self.sd, high) + self.paper.rounding
        return all(least <= value <= most for value in self.paper.values)

    def as_json(self) -> dict[str, Any]:
        """Return the finding with its judgement, ready for JSON."""
        paper = self.paper
        return {
            "artefact": self.artefact,
            "row": self.row,
            "metric": self.metric,
            "paper": None if paper is None else fmean(paper.values),
            "paper_printed": None if paper is None else paper.printed,
            "mean": self.mean,
            "sd": self.sd,
            "min": self.low,
            "max": self.high,
            "away": self.away,
            "inside": self.inside,
        }

    def repeats(self, other: Finding) -> bool:
        """Whether our values are the same and the paper prints the same value up to rounding."""
        if self.paper is None or other.paper is None or self._ours != other._ours:
            return False
        rounding = max(self.paper.rounding, other.paper.rounding)
        pairs = zip(self.paper.values, other.paper.values, strict=False)
        same_length = len(self.paper.values) == len(other.paper.values)
        return same_length and all(abs(a - b) <= rounding for a, b in pairs)

    @property
    def _ours(self) -> tuple[float | None, ...]:
        return self.mean, self.sd, self.low, self.high


@dataclass(frozen=True)
class DynamicsResults:
    """All findings, over how many seeds, and by which command, when and on what they were made."""

    seeds: int
    made: str
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, out: Path) -> DynamicsResults | None:
        """Read OUT/dynamics.json; None if there is none that can be used."""
        try:
            content = json.loads((out / "dynamics.json").read_text(encoding="utf-8"))
            found = tuple(Finding.read(row) for row in content["rows"])
            return cls(content["seeds"], content["made"], found) if content["seeds"] else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, out: Path) -> None:
        """Write OUT/dynamics.json."""
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=2) + "\n"
        (out / "dynamics.json").write_text(text, encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """Return the content of dynamics.json."""
        rows = [finding.as_json() for finding in self.findings]
        return {"artefact": "dynamics", "seeds": self.seeds, "made": self.made, "rows": rows}

    @property
    def is_complete(self) -> bool:
        """Whether it has every row of the tables as they are now."""
        tables = load_dynamics()
        wanted = [
            (a.name, row.label, metric) for a in tables for row in a.rows for metric in row.paper
        ]
        return wanted == [(own.artefact, own.row, own.metric) for own in self.findings]


def measure_dynamics(
    cells: Sequence[Cell], jobs: int | None, progress: CellProgress
) -> DynamicsResults:
    """Run the cells of `dynamics_cells` for all training-free tables and summarise them."""
    begun = time.perf_counter()
    results = run_cells(cells, Options(), jobs, progress)
    seconds, seeds = time.perf_counter() - begun, max(cell.seed for cell in cells)
    made = (
        f"`fedraw reproduce dynamics --seeds {seeds}`, {date.today()}: {len(cells)} runs in "
        f"{seconds:.0f} s, {min(jobs or cores(), len(cells))} processes on {cores()} cores."
    )
    return DynamicsResults(seeds, made, tuple(findings(load_dynamics(), cells, results)))


def dynamics_cells(artefacts: Sequence[Artefact], seeds: int) -> list[Cell]:
    """List every spec once, however many rows have it, on the seeds 1 to `seeds`."""
    if seeds < 1:
        raise BadInput(f"--seeds {seeds} must be at least 1")
    rows = [row for artefact in artefacts for row in artefact.rows]
    wanted = [spec for row in rows for spec in (row.spec, row.minus) if spec is not None]
    specs = {key_of(spec): spec for spec in wanted}
    return [Cell(spec, seed) for spec in specs.values() for seed in range(1, seeds + 1)]


def findings(
    artefacts: Sequence[Artefact], cells: Sequence[Cell], results: Sequence[Result]
) -> list[Finding]:
    """Compare the results of `dynamics_cells` with every value of the paper."""
    keys = {id(cell.spec): key_of(cell.spec) for cell in cells if cell.seed == 1}
    by_spec: BySpec = {}
    for cell, result in zip(cells, results, strict=True):
        by_spec.setdefault(keys[id(cell.spec)], []).append(result.summary["metrics"])
    return [
        Finding.of(artefact.name, row.label, metric, paper, _values(row, metric, by_spec))
        for artefact in artefacts
        for row in artefact.rows
        for metric, paper in row.paper.items()
    ]


def distinct(found: Sequence[Finding], seeds: int) -> list[Finding]:
    """Return the findings that are worth counting, each value of the paper once.

    A value that follows from the settings is left out, because every seed gives it. So is one that
    repeats an earlier one.
    """
    counted: list[Finding] = []
    for finding in found:
        certain = seeds > 1 and (finding.sd or 0.0) < 1e-9
        repeats = any(earlier.repeats(finding) for earlier in counted)
        if finding.inside is not None and not certain and not repeats:
            counted.append(finding)
    return counted


def _values(row: ArtefactRow, metric: str, by_spec: BySpec) -> list[float | None]:
    own = [seed[metric] for seed in by_spec[key_of(row.spec)]]
    if row.minus is None:
        return own
    other = [seed[metric] for seed in by_spec[key_of(row.minus)]]
    return [None if a is None or b is None else a - b for a, b in zip(own, other, strict=True)]
