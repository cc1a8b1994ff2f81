"""Compares seven methods on federations of a thousand clients and more.

    fedraw data fetch emnist shakespeare flights
    python examples/scale/compare.py emnist shakespeare flights --out runs/scale

The command prints tables of the results. If it is repeated, finished runs are not run again, and an
interrupted run is resumed. `--tables` only prints the tables of the finished runs, as Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

import fedraw

HERE = Path(__file__).parent
METHODS = {
    "fedavg": "FedAvg",
    "fedbuff": "FedBuff",
    "fedfa": "FedFa",
    "ca2fl": "CA2FL",
    "fedraw": "FedRAW",
    "fedraw-replay": "replay",
    "fedraw-replay-debt": "debt replay",
}
METRICS = ("GlobalAcc", "AvgRare")


def run(tasks: Sequence[str], out: Path) -> None:
    """Run what is not finished, seed by seed, so that all methods have the same seeds."""
    seeds = fedraw.Spec.from_file(HERE / f"{tasks[0]}.toml").run.seeds
    for seed, task, method in product(seeds, tasks, METHODS):
        folder = out / task / method
        if (folder / f"seed-{seed}" / "summary.json").exists():
            continue
        print(f"{task}, {METHODS[method]}, seed {seed}", flush=True)
        spec = fedraw.Spec.from_file(HERE / f"{task}.toml", {"strategy.name": method})
        fedraw.simulate(
            spec, seeds=[seed], executor="batched", out=folder, resume=True, progress=False
        )


Curves = dict[int, dict[str, np.ndarray]]


def curves_of(folder: Path) -> Curves:
    """Return the evaluations of each finished seed: events, virtual hours and metrics."""
    found: Curves = {}
    for seed in sorted(folder.glob("seed-*/summary.json")):
        table = fedraw.load(seed.parent).curves
        keys = ("event", "hours", *METRICS)
        found[table["seed"][0]] = {key: np.array(table[key], float) for key in keys}
    return found


def cell(curves: Curves, over: str, upto: float) -> str:
    """Return GlobalAcc and AvgRare at the last evaluation up to `upto`, as means over seeds."""
    values = []
    for curve in curves.values():
        place = int(np.searchsorted(curve[over], upto, side="right")) - 1
        if place < 0:
            return "–"
        values.append([curve[metric][place] for metric in METRICS])
    return " / ".join(f"{value:.1f}" for value in np.mean(values, axis=0))


def last(curves: Curves) -> str:
    """Return mean and sample standard deviation over the seeds of the last five evaluations."""
    tails = [[curve[metric][-5:].mean() for metric in METRICS] for curve in curves.values()]
    means = [f"{mean:.1f}" for mean in np.mean(tails, axis=0)]
    if len(tails) > 1:
        sds = np.std(tails, axis=0, ddof=1)
        means = [f"{mean} ± {sd:.1f}" for mean, sd in zip(means, sds, strict=True)]
    return " | ".join(means)


def tables(task: str, out: Path) -> str:
    """Return the results of one task: at the end, over events, and over virtual hours."""
    results = {method: curves_of(out / task / method) for method in METHODS}
    results = {method: curves for method, curves in results.items() if curves}
    if not results:
        return f"{task}: no run is finished"
    seeds = set.intersection(*map(set, results.values()))  # the seeds that all methods have
    results = {
        method: {seed: curve for seed, curve in curves.items() if seed in seeds}
        for method, curves in results.items()
    }
    everything = [curve for curves in results.values() for curve in curves.values()]
    events = fedraw.Spec.from_file(HERE / f"{task}.toml").run.events
    # A synchronous method waits for clients that are offline, so it takes far longer.
    quick = min(curve["hours"][-1] for curve in everything)
    slow = max(curve["hours"][-1] for curve in everything)
    lines = [
        "| method | seeds | virtual hours | GlobalAcc | AvgRare |",
        "|---|--:|--:|--:|--:|",
    ]
    for method, curves in results.items():
        mean = np.mean([curve["hours"][-1] for curve in curves.values()])
        lines.append(f"| {METHODS[method]} | {len(curves)} | {mean:.1f} | {last(curves)} |")
    for over, marks, unit in (
        ("event", [share * events for share in (0.25, 0.5, 0.75, 1.0)], "events"),
        ("hours", [quick / 2, quick, slow / 2, slow], "h"),
    ):
        names = [
            f"{mark:,.0f} {unit}" if over == "event" else f"{mark:.1f} {unit}" for mark in marks
        ]
        lines += ["", f"| GlobalAcc / AvgRare | {' | '.join(names)} |", "|---|--:|--:|--:|--:|"]
        for method, curves in results.items():
            cells = [cell(curves, over, mark + 1e-9) for mark in marks]
            lines.append(f"| {METHODS[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparisons, and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=("emnist", "shakespeare", "flights"))
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    options = parser.parse_args()
    if not options.tables:
        run(options.tasks, options.out)
    for task in options.tasks:
        print(f"\n**{task}**\n\n{tables(task, options.out)}", flush=True)


if __name__ == "__main__":
    main()
