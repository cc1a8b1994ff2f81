"""Does label influence, computed before training, say which labels a run will recognise?

Trains on digits over many random federations (clients, coverage, speeds, buffer, method), and puts
beside each label's recall what the audit says of it beforehand. The fit becomes the thresholds of
the audit's verdicts (`fedraw.analysis.verdict`), the table `docs/audit.md`.

    python -m benchmarks.audit_calibration --runs 480 --out runs/calibration.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.calibration_report import report

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import RULES, influence
from fedraw.analysis.label_influence import LabelShares
from fedraw.analysis.presence import arrival_shares, group_presence, presence
from fedraw.core.rarity import rarity_scores
from fedraw.data.catalog import load
from fedraw.experiments.cells import Cell, run_cells
from fedraw.experiments.run import How
from fedraw.experiments.scenario import Scenario
from fedraw.experiments.spec import Spec

STRATEGIES: dict[str, dict[str, Any]] = {
    "fedfa": {"name": "fedfa"},
    "fedbuff": {"name": "fedbuff"},
    "ca2fl": {"name": "ca2fl"},
    "fedraw": {"name": "fedraw"},
    "fedraw-dedup-only": {"name": "fedraw", "weighting": "uniform"},
    "fedraw-weight-only": {"name": "fedraw", "dedup": False},
}
EVENTS = 3000
BATCH = 20


def federation(number: int, scratch: Path) -> tuple[str, Spec]:
    """The number-th random federation; methods take turns, so each meets as many."""
    rng = np.random.default_rng([2026, number])
    method = list(STRATEGIES)[number % len(STRATEGIES)]
    clients = int(rng.integers(12, 33))
    rare = [int(label) for label in rng.choice(10, int(rng.integers(1, 4)), replace=False)]
    path = scratch / f"{number}.npz"
    small = [int(label) for label in rng.choice(10, 2, replace=False) if label not in rare]
    _write_digits(path, rare, small, rng)
    spec = {
        "data": {"name": "npz", "path": str(path)},
        "partition": {
            "clients": clients,
            "rare_labels": rare,
            "clients_per_rare_label": int(rng.integers(1, max(2, clients // 5))),
            "clients_per_common_label": max(1, int(clients * rng.uniform(0.25, 0.9))),
        },
        "speeds": {"kind": "ratio", "ratio": float(np.exp(rng.uniform(0, np.log(20))))},
        "strategy": {**STRATEGIES[method], "buffer": int(rng.integers(3, min(20, clients - 1)))},
        "run": {"events": EVENTS, "evaluate_every": 150, "seeds": [number]},
    }
    return method, Spec.read(spec)


def _write_digits(path: Path, rare: list[int], small: list[int], rng: np.random.Generator) -> None:
    """The digits; for training, at least 8 % of a rare one and 28 % of a small one are left."""
    data = load("digits", rng=rng)
    kept = np.ones(data.classes)
    for labels, least in ((rare, 0.08), (small, 0.28)):
        kept[labels] = np.minimum(1.0, np.exp(rng.uniform(np.log(least), 0.5, len(labels))))
    few = rng.random(len(data.labels)) > kept[data.labels]
    np.savez(
        path,
        images=data.images[:][~few],
        labels=data.labels[~few],
        test_images=data.test_images[:],
        test_labels=data.test_labels,
    )


def records(numbers: list[int], jobs: int | None) -> Iterator[dict[str, Any]]:
    """One record per run: what is known beforehand, and the recall that came of it."""
    with TemporaryDirectory() as scratch:
        drawn = [federation(number, Path(scratch)) for number in numbers]
        before = [beforehand(m, spec, n) for n, (m, spec) in zip(numbers, drawn, strict=True)]
        folders = [Path(scratch, str(number)) for number in numbers]
        cells = [Cell(d[1], n, f) for d, n, f in zip(drawn, numbers, folders, strict=True)]
        results = run_cells(cells, How(), jobs)
        recalls = [recall(folder) for folder in folders]
    for i, number in enumerate(numbers):
        method, spec = drawn[i]
        yield {
            "number": number,
            "method": method,
            "spec": spec.tables(),
            "recall": recalls[i],
            "global_accuracy": results[i].summary["tail"]["GlobalAcc"],
            "beforehand": before[i],
        }


def recall(folder: Path) -> dict[str, float]:
    """Of each label, over the last five evaluations: between two of them it swings."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [line for line in map(json.loads, lines) if line["kind"] == "evaluation"][-5:]
    return {
        label: float(np.mean([evaluation["recall"][label] for evaluation in evaluations]))
        for label in evaluations[-1]["recall"]
    }


def beforehand(method: str, spec: Spec, seed: int) -> dict[str, Any]:
    """What can be known of each label before training: one list per predictor."""
    clients = Scenario.of(spec, seed).clients
    table, seconds = clients.table, clients.seconds
    size = spec.tables()["strategy"]["buffer"]
    nobody = np.zeros(len(table), np.bool_)
    groups = Groups.of(1 / seconds, rarity_scores(table), nobody)
    rule = RULES[method]
    weight = influence(groups, size, rule)
    shares = arrival_shares(seconds)
    shares_of_labels = LabelShares(table, groups, 1 / seconds, rarity_scores(table))
    row, column = table.row_of_entry(), table.column
    label_weight = np.bincount(column, weight[row] * table.share, len(table.labels))

    def each(of: Any) -> list[float]:
        return [float(of(row[column == label])) for label in range(len(table.labels))]

    def mask(holders: Any) -> Any:
        inside = np.zeros(len(table), np.bool_)
        inside[holders] = True
        return inside

    return {
        "labels": [str(label) for label in table.labels],
        "clients": len(table),
        "buffer": size,
        "coverage": table.coverage().tolist(),
        "fair": table.fair_shares().tolist(),
        "label_influence": label_weight.tolist(),
        "standing": shares_of_labels.of_clients(weight).standing.tolist(),
        "holders_influence": each(lambda h: weight[h].sum()),
        "presence": each(lambda h: group_presence(shares, mask(h), size, rule.buffer)),
        "holders_presence": each(lambda h: presence(shares, size, rule.buffer)[h].mean()),
        "arrival_share": each(lambda h: shares[h].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=480)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/calibration.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    left = [number for number in range(options.runs) if number not in done]
    for begin in range(0, len(left), BATCH):
        with options.out.open("a") as file:
            for record in records(left[begin : begin + BATCH], options.jobs):
                file.write(json.dumps(record) + "\n")
    print(report(list(map(json.loads, options.out.read_text().splitlines()))), end="")


if __name__ == "__main__":
    main()
