"""Compares the audit's predictions before training with the recall of each label after training.

The runs train on digits in many random federations (clients, coverage, speeds, buffer, method). The
fit of recall against the predictions gives the thresholds of the audit's verdicts
(`fedraw.auditing.methods`) and the tables of `docs/research/calibration.md`.

    python -m benchmarks.audit_calibration --runs 480 --out runs/calibration.jsonl

The methods alternate over the federations; `--method` runs one method on every federation:

    python -m benchmarks.audit_calibration --method fedraw-replay --runs 160 --out runs/replay.jsonl
    python -m benchmarks.audit_calibration --method fedraw-replay --runs 60 --ratio 20 200 \\
        --out runs/starved.jsonl
    python -m benchmarks.audit_calibration --method fedraw-replay --runs 160 --events 600 \\
        --out runs/short.jsonl

`--method` takes every method that has an audit rule in the catalogue. Its report has the mean
recall of the rare and small labels, which compares methods over the same federations. `--rate`
replaces the default of the method's main rate, for example by the rate that the arena chose:

    python -m benchmarks.audit_calibration --method fedvarp --rate 0.4 --runs 60 \\
        --out runs/fedvarp.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.calibration_report import (
    PREDICTORS,
    fit,
    report,
    resampled,
    scarce_labels,
    thresholds,
)
from benchmarks.machine import headline
from scipy.stats import spearmanr

from fedraw.auditing.influence import influence, kept
from fedraw.auditing.methods import BY_METHOD, RULES, verdict
from fedraw.auditing.presence import Groups, arrival_shares, group_presence, presence
from fedraw.auditing.standing import LabelWeights
from fedraw.core.rarity import rarity_scores
from fedraw.data.catalog import load
from fedraw.experiment.cells import Cell, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec

STRATEGIES: dict[str, dict[str, Any]] = {
    "fedfa": {"name": "fedfa"},
    "fedbuff": {"name": "fedbuff"},
    "ca2fl": {"name": "ca2fl"},
    "fedraw": {"name": "fedraw"},
    "fedraw-dedup-only": {"name": "fedraw", "weighting": "uniform"},
    "fedraw-weight-only": {"name": "fedraw", "dedup": False},
}
# The methods that `--method` accepts.
SINGLE: dict[str, dict[str, Any]] = {name: {"name": name} for name in RULES}
EVENTS = 3000
CLIENTS = (12, 32)
RATIO = (1.0, 20.0)  # the range of the slowdown of holders of rare labels
BATCH = 4  # runs between two writes of the results


@dataclass(frozen=True)
class Setting:
    """The common settings of the runs; without a method, all methods alternate."""

    method: str | None = None
    ratio: tuple[float, float] = RATIO
    events: int = EVENTS
    jobs: int | None = None
    rate: float | None = None  # the strategy's server_lr; None: its default
    clients: tuple[int, int] = CLIENTS
    evaluations: int = 20


def federation(number: int, scratch: Path, setting: Setting) -> tuple[str, Spec]:
    """Return the method and the spec of the random federation with this number."""
    rng = np.random.default_rng([2026, number])
    method = setting.method or list(STRATEGIES)[number % len(STRATEGIES)]
    low, high = np.log(setting.ratio)
    clients = int(rng.integers(setting.clients[0], setting.clients[1] + 1))
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
        "speeds": {"kind": "ratio", "ratio": float(np.exp(rng.uniform(low, high)))},
        "strategy": _strategy(method, _buffer(clients, rng), setting.rate),
        "run": {
            "events": setting.events,
            "evaluate_every": setting.events // setting.evaluations,
            "seeds": [number],
        },
    }
    return method, Spec.from_dict(spec)


def _buffer(clients: int, rng: np.random.Generator) -> int:
    """Draw a buffer size; FedRAW's buffer has at most one slot for each client."""
    if clients < CLIENTS[0]:
        return int(rng.integers(2, clients + 1))
    return int(rng.integers(3, min(20, clients - 1)))


def _strategy(method: str, buffer: int, rate: float | None) -> dict[str, Any]:
    own = (SINGLE | STRATEGIES)[method]
    own = own if rate is None else {**own, "server_lr": rate}
    return {**own, "buffer": buffer} if BY_METHOD[method].has_buffer else own


def _write_digits(path: Path, rare: list[int], small: list[int], rng: np.random.Generator) -> None:
    """Write digits with fewer training samples: at least 8 % of rare and 28 % of small labels."""
    data = load("digits", rng=rng)
    kept = np.ones(data.classes)
    for labels, least in ((rare, 0.08), (small, 0.28)):
        kept[labels] = np.minimum(1.0, np.exp(rng.uniform(np.log(least), 0.5, len(labels))))
    few = rng.random(len(data.labels)) > kept[data.labels]
    np.savez(
        path,
        inputs=data.inputs[:][~few],
        labels=data.labels[~few],
        test_inputs=data.test_inputs[:],
        test_labels=data.test_labels,
    )


def records(numbers: list[int], setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield one record per run: the predictions before training, and the recall after it."""
    with TemporaryDirectory() as scratch:
        drawn = [federation(number, Path(scratch), setting) for number in numbers]
        before = [beforehand(m, spec, n) for n, (m, spec) in zip(numbers, drawn, strict=True)]
        folders = [Path(scratch, str(number)) for number in numbers]
        cells = [Cell(d[1], n, f) for d, n, f in zip(drawn, numbers, folders, strict=True)]
        results = run_cells(cells, Options(), setting.jobs)
        recalls = [recall(folder) for folder in folders]
    for i, number in enumerate(numbers):
        method, spec = drawn[i]
        yield {
            "number": number,
            "method": method,
            "spec": spec.to_dict(),
            "recall": recalls[i],
            "global_accuracy": results[i].summary["tail"]["GlobalAcc"],
            "beforehand": before[i],
        }


def recall(folder: Path) -> dict[str, float]:
    """Return the recall of each label, averaged over the last five evaluations."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [line for line in map(json.loads, lines) if line["kind"] == "evaluation"][-5:]
    return {
        label: float(np.mean([evaluation["recall"][label] for evaluation in evaluations]))
        for label in evaluations[-1]["recall"]
    }


def beforehand(method: str, spec: Spec, seed: int) -> dict[str, Any]:
    """Return the predictors of each label's recall that are known before training, as lists."""
    clients = Scenario.of(spec, seed).clients
    table, seconds = clients.table, clients.seconds
    size = spec.to_dict()["strategy"].get("buffer", 1)
    events = spec.to_dict()["run"]["events"]
    nobody = np.zeros(len(table), np.bool_)
    groups = Groups.of(1 / seconds, rarity_scores(table), nobody, samples=table.totals())
    rule = RULES[method]
    weight = influence(groups, size, rule)
    slots = rule.slots(size, len(table))
    shares = arrival_shares(seconds)
    stays = kept(groups, size, rule)
    shares_of_labels = LabelWeights(table, groups, 1 / seconds, rarity_scores(table))
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
        "presence": each(lambda h: group_presence(shares, mask(h), slots, rule.buffer, kept=stays)),
        "holders_presence": each(
            lambda h: presence(shares, slots, rule.buffer, kept=stays)[h].mean()
        ),
        "arrival_share": each(lambda h: shares[h].sum()),
        "updates": each(lambda h: events * shares[h].sum()),
        "replayed": each(lambda h: 0 if stays is None else np.isin(stays, h).sum()),
    }


def method_report(records: list[dict[str, Any]]) -> str:
    """Return the report of one method: mean recall, fitted thresholds and verdicts."""
    rows = [row for record in records for row in scarce_labels(record)]
    recall = np.array([row["recall"] for row in rows])
    accuracy = np.mean([record["global_accuracy"] for record in records])
    return "\n".join(
        (
            f"`{headline()}`: {rows[0]['method']}, {len(records)} runs, {len(rows)} rare or small "
            f"labels, mean recall {100 * recall.mean():.1f} % (GlobalAcc "
            f"{accuracy:.1f} %).",
            "",
            *_fitted(("all", rows)),
            "",
            *_judged(rows),
            "",
        )
    )


def replay_report(records: list[dict[str, Any]]) -> str:
    """Return the report of replay: how well standing predicts recall, and by how many updates."""
    rows = [row for record in records for row in _replay_rows(record)]
    held = [row for row in rows if row["replayed"]]
    others = [row for row in rows if not row["replayed"]]
    empty = sum(not any(record["beforehand"]["replayed"]) for record in records)
    return "\n".join(
        (
            f"`{headline()}`: {len(records)} runs, {len(rows)} rare or small labels, {len(held)} of"
            f" them with a replayed holder; {empty} runs replay no client.",
            "",
            *_predictors(rows, held, others),
            "",
            *_fitted(("all", rows), ("with a replayed holder", held), ("without", others)),
            "",
            *_by_updates(held),
            "",
            *_judged(rows),
            "",
        )
    )


def _replay_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    before = record["beforehand"]
    place = {label: i for i, label in enumerate(before["labels"])}
    rare = {str(label) for label in record["spec"]["partition"]["rare_labels"]}
    median_share = np.median(before["fair"])
    scarce = [s for s in place if s in rare or before["fair"][place[s]] < 0.7 * median_share]
    return [
        row | {name: before[name][place[label]] for name in ("updates", "replayed")}
        for row, label in zip(scarce_labels(record), scarce, strict=True)
    ]


def _updates(row: Mapping[str, Any]) -> float:
    return float(row["updates"])


def _predictors(*parts: list[dict[str, Any]]) -> Iterator[str]:
    yield "Rank correlation with recall, and share of its variance explained:"
    yield ""
    yield "| known beforehand | all | with a replayed holder | without |"
    yield "|---|---:|---:|---:|"
    for name, predictor in {**PREDICTORS, "updates of all holders": _updates}.items():
        cells = []
        for part in parts:
            recall = np.array([row["recall"] for row in part])
            x = np.array([predictor(row) for row in part], np.float64)
            if np.ptp(x) == 0:
                cells.append("constant")
                continue
            residual = fit(x, recall)[1]
            cells.append(f"{spearmanr(x, recall)[0]:.2f}, {1 - residual**2 / recall.var():.2f}")
        yield f"| {name} | {' | '.join(cells)} |"


def _fitted(*parts: tuple[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "The standing at which the fitted recall is 25, 50 and 75 %:"
    yield ""
    yield "| labels | 25 % at | 50 % at | 75 % at | spread |"
    yield "|---|---:|---:|---:|---:|"
    for name, part in parts:
        recall = np.array([row["recall"] for row in part])
        x, numbers = (np.array([row[key] for row in part]) for key in ("standing", "number"))
        found, residual = fit(x, recall)
        resamples = [thresholds(*fit(x[i], recall[i])[0]) for i in resampled(numbers)]
        ends = np.percentile(resamples, [2.5, 97.5], axis=0)
        at = [
            f"{value:.2f} ({low:.2f} to {high:.2f})"
            for value, low, high in zip(thresholds(*found), *ends, strict=True)
        ]
        yield f"| {name} | {' | '.join(at)} | {100 * residual:.0f} points |"


def _by_updates(held: list[dict[str, Any]]) -> Iterator[str]:
    edges = (0, 3, 6, 12, 25, 50, 100, 200, np.inf)
    yield "Labels with a replayed holder and the verdict kept, by the updates of all holders:"
    yield ""
    yield "| updates | labels | median recall (10th to 90th percentile) | below 50 % |"
    yield "|---|---:|---:|---:|"
    for low, high in itertools.pairwise(edges):
        own = [r for r in held if verdict(r["method"], r["standing"]) == "kept"]
        found = np.array([100 * r["recall"] for r in own if low <= r["updates"] < high])
        name = f"{low} to {high}" if high < np.inf else f"{low} and more"
        if found.size < 3:
            yield f"| {name} | {found.size} | | |"
            continue
        tenth, half, nine = np.percentile(found, [10, 50, 90])
        below = f"{100 * np.mean(found < 50):.0f} %"
        yield f"| {name} | {found.size} | {half:.0f} ({tenth:.0f} to {nine:.0f}) | {below} |"


def _judged(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "The verdicts: labels, median recall, share below 50 % (lost) or not below it (others):"
    yield ""
    for word in ("lost", "at risk", "kept"):
        own = [r["recall"] for r in rows if verdict(r["method"], r["standing"]) == word]
        if own:
            right = np.array(own) < 0.5 if word == "lost" else np.array(own) >= 0.5
            yield f"- {word}: {len(own)}, {100 * np.median(own):.0f}, {100 * right.mean():.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=480)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--method", choices=list(SINGLE), help="no turns: this one only")
    parser.add_argument("--rate", type=float, help="server_lr instead of the method's default")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--ratio", nargs=2, type=float, default=RATIO, metavar=("FROM", "TO"))
    parser.add_argument("--out", type=Path, default=Path("runs/calibration.jsonl"))
    options = parser.parse_args()
    setting = Setting(
        options.method, tuple(options.ratio), options.events, options.jobs, options.rate
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    left = [number for number in range(options.runs) if number not in done]
    for begin in range(0, len(left), BATCH):
        with options.out.open("a") as file:
            for record in records(left[begin : begin + BATCH], setting):
                file.write(json.dumps(record) + "\n")
    found = list(map(json.loads, options.out.read_text().splitlines()))
    with_debts = options.method in ("fedraw-replay", "fedraw-replay-debt")
    one = replay_report if with_debts else method_report
    print((report if options.method is None else one)(found), end="")
    if with_debts:
        print(method_report(found), end="")


if __name__ == "__main__":
    main()
