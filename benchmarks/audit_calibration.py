"""Does label influence, computed before training, say which labels a run will recognise?

Trains on digits over many random federations (clients, coverage, speeds, buffer, method), and puts
beside each label's recall what the audit says of it beforehand. The fit becomes the thresholds of
the audit's verdicts (`fedraw.analysis.verdict`), the table `docs/audit.md`.

    python -m benchmarks.audit_calibration --runs 600 --out runs/calibration.jsonl
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
from fedraw.analysis.presence import arrival_shares, group_presence, presence
from fedraw.core.rarity import rarity_scores
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


def federation(number: int) -> tuple[str, Spec]:
    """The number-th random federation; methods take turns, so each meets as many."""
    rng = np.random.default_rng([2026, number])
    method = list(STRATEGIES)[number % len(STRATEGIES)]
    clients = int(rng.integers(12, 41))
    rare = rng.choice(10, int(rng.integers(1, 4)), replace=False)
    spec = {
        "data": {"name": "digits"},
        "partition": {
            "clients": clients,
            "rare_labels": [int(label) for label in rare],
            "clients_per_rare_label": int(rng.integers(1, max(2, clients // 5))),
            "clients_per_common_label": int(clients * rng.uniform(0.4, 0.9)),
        },
        "speeds": {"kind": "ratio", "ratio": float(np.exp(rng.uniform(0, np.log(20))))},
        "strategy": {**STRATEGIES[method], "buffer": int(rng.integers(3, min(20, clients - 1)))},
        "run": {"events": EVENTS, "evaluate_every": 150, "seeds": [number]},
    }
    return method, Spec.read(spec)


def records(numbers: list[int], jobs: int | None) -> Iterator[dict[str, Any]]:
    """One record per run: what is known beforehand, and the recall that came of it."""
    drawn = [federation(number) for number in numbers]
    with TemporaryDirectory() as scratch:
        folders = [Path(scratch, str(number)) for number in numbers]
        cells = [Cell(d[1], n, f) for d, n, f in zip(drawn, numbers, folders, strict=True)]
        results = run_cells(cells, How(), jobs)
        recalls = [recall(folder) for folder in folders]
    for number, (method, spec), result, found in zip(numbers, drawn, results, recalls, strict=True):
        yield {
            "number": number,
            "method": method,
            "spec": spec.tables(),
            "recall": found,
            "global_accuracy": result.summary["tail"]["GlobalAcc"],
            "beforehand": beforehand(method, spec, number),
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
        "holders_influence": each(lambda h: weight[h].sum()),
        "presence": each(lambda h: group_presence(shares, mask(h), size, rule.buffer)),
        "holders_presence": each(lambda h: presence(shares, size, rule.buffer)[h].mean()),
        "arrival_share": each(lambda h: shares[h].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=600)
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
