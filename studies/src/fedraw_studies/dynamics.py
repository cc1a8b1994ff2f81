"""The paper's training-free values: many seeds of the usual loop, without a model.

`paper/dynamics.toml` has the runs and the values that the paper prints. The runs take seconds, so
no cell is stored for them: their findings are in one file, `OUT/dynamics.json`.
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
from fedraw.experiment.cells import Cell, CellProgress, cores, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.result import SeedResult
from fedraw.storage.files import atomic_write
from fedraw_studies.artefacts import Artefact, ArtefactRow, PaperValue, load_dynamics
from fedraw_studies.outcomes import Finding, Values
from fedraw_studies.plan import key_of

# Metrics by seed, by the key of a spec.
BySpec = Mapping[str, Mapping[int, Mapping[str, float | None]]]


@dataclass(frozen=True)
class DynamicsResults:
    """All findings, their number of seeds, and the command, date and machine that made them."""

    seeds: int
    made: str
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, out: Path) -> DynamicsResults | None:
        """Read OUT/dynamics.json; return None if there is no usable file."""
        try:
            content = json.loads((out / "dynamics.json").read_text(encoding="utf-8"))
            found = tuple(map(_finding, content["rows"]))
            return cls(content["seeds"], content["made"], found) if content["seeds"] else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, out: Path) -> None:
        """Write OUT/dynamics.json."""
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=2) + "\n"
        atomic_write(out / "dynamics.json", text.encode())

    def as_json(self) -> dict[str, Any]:
        """Return the content of dynamics.json."""
        rows = [_finding_as_json(finding) for finding in self.findings]
        return {"artefact": "dynamics", "seeds": self.seeds, "made": self.made, "rows": rows}

    @property
    def is_complete(self) -> bool:
        """Whether it has every row of the current tables."""
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
    """Return the cells of every distinct spec on the seeds 1 to `seeds`."""
    if seeds < 1:
        raise BadInput(f"--seeds {seeds} must be at least 1")
    rows = [row for artefact in artefacts for row in artefact.rows]
    wanted = [spec for row in rows for spec in (row.spec, row.minus) if spec is not None]
    specs = {key_of(spec): spec for spec in wanted}
    return [Cell(spec, seed) for spec in specs.values() for seed in range(1, seeds + 1)]


def findings(
    artefacts: Sequence[Artefact], cells: Sequence[Cell], results: Sequence[SeedResult]
) -> list[Finding]:
    """Compare the results of `dynamics_cells` with every value of the paper."""
    by_spec: dict[str, dict[int, Mapping[str, float | None]]] = {}
    for cell, result in zip(cells, results, strict=True):
        by_spec.setdefault(key_of(cell.spec), {})[cell.seed] = result.summary["metrics"]
    return [
        Finding.of(artefact.name, row.label, metric, paper, _values(row, metric, by_spec))
        for artefact in artefacts
        for row in artefact.rows
        for metric, paper in row.paper.items()
    ]


def distinct(found: Sequence[Finding], seeds: int) -> list[Finding]:
    """Return the informative findings, each value of the paper once.

    A value that follows from the settings is left out, because every seed gives it. A value that
    repeats an earlier one is left out, too.
    """
    counted: list[Finding] = []
    for finding in found:
        certain = seeds > 1 and (finding.sd or 0.0) < 1e-9
        repeats = any(earlier.repeats(finding) for earlier in counted)
        if finding.inside is not None and not certain and not repeats:
            counted.append(finding)
    return counted


def _values(row: ArtefactRow, metric: str, by_spec: BySpec) -> Values:
    own = {seed: metrics[metric] for seed, metrics in by_spec[key_of(row.spec)].items()}
    if row.minus is None:
        return own
    other = {seed: metrics[metric] for seed, metrics in by_spec[key_of(row.minus)].items()}
    pairs = {seed: (a, other[seed]) for seed, a in own.items()}
    return {s: None if a is None or b is None else a - b for s, (a, b) in pairs.items()}


def _finding(table: Mapping[str, Any]) -> Finding:
    printed = table["paper_printed"]
    paper = None if printed is None else PaperValue.of(printed)
    ours = (table["mean"], table["sd"], table["min"], table["max"])
    return Finding(table["artefact"], table["row"], table["metric"], paper, *ours)


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    paper = finding.paper
    return {
        "artefact": finding.artefact,
        "row": finding.row,
        "metric": finding.metric,
        "paper": None if paper is None else fmean(paper.values),
        "paper_printed": None if paper is None else paper.printed,
        "mean": finding.mean,
        "sd": finding.sd,
        "min": finding.low,
        "max": finding.high,
        "away": finding.away,
        "inside": finding.inside,
    }
