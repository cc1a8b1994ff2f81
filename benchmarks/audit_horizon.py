"""Measures how much sooner a run may end before the audit's verdicts are wrong.

    python -m benchmarks.audit_horizon --federations 30 --out runs/horizon.jsonl

The federations are those of `benchmarks.audit_calibration`, with 12 to 32 clients, and as many with
3 to 11 clients. Each trains on digits under seven methods for 3,000 arrivals and is evaluated every
20, so that one run gives the recall after each horizon: the mean of the last five evaluations. The
report has the fit of recall against standing and aggregations from which `fedraw.auditing.horizon`
takes its numbers, and how often verdicts are right after each horizon.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.audit_calibration import CLIENTS, EVENTS, Setting, beforehand, federation
from benchmarks.calibration_report import scarce_labels
from benchmarks.machine import headline
from scipy.optimize import least_squares

from fedraw.auditing.horizon import Horizon, fit_of
from fedraw.auditing.methods import VERDICTS
from fedraw.core.types import Floats
from fedraw.experiment.cells import Cell, run_cells
from fedraw.experiment.options import Options

METHODS = (
    "fedavg", "fedfa", "fedbuff", "ca2fl", "fedraw", "fedraw-replay", "fedraw-replay-debt",
)  # fmt: skip
HORIZONS = (200, 300, 600, 1000, 3000)
EVERY, TAIL = 20, 5
RANGES = (CLIENTS, (3, CLIENTS[0] - 1))
FAMILIES = {"waiting": METHODS[:1], "averaging": ("fedfa", "fedraw"), "adding": METHODS[2:4]}
FAMILIES["adding"] += METHODS[5:]


def records(number: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each rare or small label of the federation under each method."""
    for clients in RANGES:
        for method in METHODS:
            setting = Setting(method, clients=clients, evaluations=EVENTS // EVERY)
            with TemporaryDirectory() as scratch:
                _, spec = federation(number, Path(scratch), setting)
                before = beforehand(method, spec, number)
                folder = Path(scratch, "run")
                run_cells([Cell(spec, number, folder)], Options(), 1)
                curves = _recalls(folder)
            own = {"number": number, "method": method, "spec": spec.to_dict(), "beforehand": before}
            for horizon, recall in curves.items():
                for row in scarce_labels(own | {"recall": recall}):
                    yield row | {"horizon": horizon, "clients": before["clients"]}


def _recalls(folder: Path) -> dict[int, dict[str, float]]:
    """Return the recall of each label after each horizon."""
    lines = map(json.loads, (folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    found = [line for line in lines if line["kind"] == "evaluation"]
    tails = {h: [line for line in found if line["event"] <= h][-TAIL:] for h in HORIZONS}
    return {
        horizon: {
            label: float(np.mean([line["recall"][label] for line in tail]))
            for label in tail[-1]["recall"]
        }
        for horizon, tail in tails.items()
    }


def horizon_of(row: Mapping[str, Any]) -> Horizon:
    """Return the horizon of a row, with one label."""
    share = np.array([row["arrival_share"]])
    return Horizon(row["horizon"], row["clients"], share, np.array([row["coverage"]]))


def report(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the fits of the families, and the accuracy of the verdicts by horizon."""
    federations = len({(row["number"], row["clients"]) for row in rows})
    yield f"`{headline()}`: {federations} federations, {len(rows)} recalls."
    yield "\n| family | a | b | c | d | spread | spread of the audit's numbers |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for family, methods in FAMILIES.items():
        part = [row for row in rows if row["method"] in methods]
        own = np.array([predicted(row) for row in part])
        recall = np.array([row["recall"] for row in part])
        found, spread = fitted(part, recall, family == "adding")
        cells = " | ".join(f"{value:.1f}" for value in found)
        error = float(np.sqrt(np.mean((own - recall) ** 2)))
        yield f"| {family} | {cells} | {100 * spread:.0f} points | {100 * error:.0f} points |"
    yield "\n| arrivals | lost | at risk | late | kept |"
    yield "|--:|--:|--:|--:|--:|"
    for horizon in HORIZONS:
        part = [row for row in rows if row["horizon"] == horizon]
        words = [
            horizon_of(r).verdicts(r["method"], np.array([r["standing"]]), r["buffer"])[0]
            for r in part
        ]
        yield f"| {horizon:,} | {' | '.join(outcomes(part, words))} |"


def outcomes(rows: Sequence[Mapping[str, Any]], words: Sequence[str]) -> Iterator[str]:
    """Yield the labels of each verdict, their median recall and the share not below a half."""
    for word in VERDICTS:
        own = [row["recall"] for row, found in zip(rows, words, strict=True) if found == word]
        half = 100 * np.mean(np.array(own) >= 0.5) if own else 0.0
        yield f"{len(own)}, {100 * np.median(own):.0f}, {half:.0f} %" if own else "0"


def predicted(row: Mapping[str, Any]) -> float:
    """Return the recall that the audit expects."""
    standing = np.array([row["standing"]])
    return float(horizon_of(row).recall(row["method"], standing, row["buffer"])[0])


def fitted(
    rows: Sequence[Mapping[str, Any]], recall: Floats, with_updates: bool
) -> tuple[Floats, float]:
    """Fit a, b, c and d; return them and the RMS residual."""
    terms = np.array(
        [
            horizon_of(r).terms(r["method"], np.array([r["standing"]]), r["buffer"])[:, 0]
            for r in rows
        ]
    )
    free = np.array([True, True, True, with_updates])

    def residual(t: Floats) -> Floats:
        logit = terms[:, free] @ t
        return np.asarray(1 / (1 + np.exp(-np.clip(logit, -50, 50))) - recall, np.float64)

    found = least_squares(residual, np.array(fit_of(rows[0]["method"]))[free])
    out = np.zeros(4)
    out[free] = found.x
    return out, float(np.sqrt(np.mean(found.fun**2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--federations", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("runs/horizon.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    for number in sorted(set(range(options.federations)) - done):
        with options.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in records(number))
    rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    print("\n".join(report(rows)))


if __name__ == "__main__":
    main()
