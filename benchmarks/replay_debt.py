"""Compares replay by rarity and by participation debt, with and without release, on digits.

    python -m benchmarks.replay_debt [--seeds 42,123,456] [--results runs/replay_debt.jsonl]

30 clients learn digits in 3,000 events with K = 10. Each of the rare labels 8 and 9 is on two
clients (on five in "five holders"), which are slower by the options factor; 2x are the paper's
speeds. In "dirichlet", labels have a Dirichlet distribution (alpha 0.1), and six random clients are
ten times as slow. In "iid", every client has the same distribution, and speeds are drawn from 0.5
to 1.5 s. All methods of a seed have the same partition, arrivals, initial model and batches.

A cell has the mean and the standard deviation over the seeds of AvgRare in the last five
evaluations (of the recall of the worst label for "dirichlet" and "iid"), and GlobalAcc in brackets.
The last column is the mean AvgRare of the settings with rare labels.
Finished runs are stored in the results file and are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.machine import headline, mean_and_spread

import fedraw

CLIENTS, EVENTS = 30, 3000
RARE = [8, 9]
LAST = 5
SLOW, SLOWER = 6, 10.0

COVERAGE = fedraw.Coverage(rare_labels=RARE)
SETTINGS: dict[str, dict[str, Any]] = {
    "2x": {"partition": COVERAGE, "speeds": fedraw.Correlated()},
    "10x": {"partition": COVERAGE, "speeds": fedraw.Ratio(10)},
    "20x": {"partition": COVERAGE, "speeds": fedraw.Ratio(20)},
    "10x, five holders": {
        "partition": fedraw.Coverage(rare_labels=RARE, clients_per_rare_label=5),
        "speeds": fedraw.Ratio(10),
    },
    "dirichlet": {"partition": fedraw.Dirichlet(0.1)},
    "iid": {"partition": fedraw.IID(), "speeds": fedraw.Uniform()},
}
BY_WORST_LABEL = ("dirichlet", "iid")
WITH_RARE_LABELS = tuple(name for name in SETTINGS if name not in BY_WORST_LABEL)
METHODS: dict[str, Any] = {
    "FedBuff": fedraw.FedBuff(),
    "CA2FL, rate 1": fedraw.CA2FL(),
    "CA2FL, rate 3": fedraw.CA2FL(server_lr=3),
    "Replay": fedraw.Replay(),
    "Replay, without release": fedraw.Replay(release=False),
    "Debt replay, rarity": fedraw.Replay(select="debt", target="rarity"),
    "Debt replay, samples": fedraw.Replay(select="debt", target="samples"),
    "Debt replay, samples, without release": fedraw.Replay(
        select="debt", target="samples", release=False
    ),
    "Debt replay, mix": fedraw.Replay(select="debt", target="mix"),
    "Debt replay, mix, without release": fedraw.Replay(select="debt", target="mix", release=False),
}


def slow_at_random(seed: int) -> list[float]:
    """Return the mean seconds of each client; six random clients are ten times as slow."""
    rng = np.random.default_rng([seed, CLIENTS])
    seconds = 0.5 + rng.random(CLIENTS)
    seconds[rng.choice(CLIENTS, SLOW, replace=False)] *= SLOWER
    return [float(value) for value in seconds]


def run(setting: str, method: str, seed: int) -> dict[str, Any]:
    """Run one method in one setting, and return its results."""
    arguments = dict(SETTINGS[setting])
    arguments.setdefault("speeds", slow_at_random(seed))
    result = fedraw.simulate(
        strategy=METHODS[method],
        data="digits",
        rare_labels=RARE,
        events=EVENTS,
        evaluate_every=EVENTS // 20,
        seeds=[seed],
        executor="batched",
        progress=False,
        **arguments,
    )
    (only,) = result.runs
    last = only.evaluations[-LAST:]
    recall = [fmean(one.recall[label] or 0.0 for one in last) for label in last[-1].recall]
    return {
        "setting": setting,
        "method": method,
        "seed": seed,
        "GlobalAcc": only.summary["tail"]["GlobalAcc"],
        "AvgRare": only.summary["tail"]["AvgRare"],
        "worst label": min(recall),
        "models on the server": max(one.server_models for one in only.evaluations),
    }


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [f"| | {' | '.join(SETTINGS)} | mean |", "|---|" + "--:|" * (len(SETTINGS) + 1)]
    for method in METHODS:
        cells = []
        for setting in SETTINGS:
            runs = [r for r in records if (r["setting"], r["method"]) == (setting, method)]
            metric = "worst label" if setting in BY_WORST_LABEL else "AvgRare"
            values = [r[metric] for r in runs]
            accuracy = fmean(r["GlobalAcc"] for r in runs)
            cells.append(f"{mean_and_spread(values)} ({accuracy:.1f})")
        rare = [r for r in records if r["method"] == method and r["setting"] in WITH_RARE_LABELS]
        mean = fmean(r["AvgRare"] for r in rare)
        lines.append(f"| {method} | {' | '.join(cells)} | {mean:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="42,123,456")
    parser.add_argument("--results", type=Path, default=Path("runs/replay_debt.jsonl"))
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    first_line = headline()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = {(r["setting"], r["method"], r["seed"]): r for r in map(json.loads, lines)}
    wanted = [(s, m, seed) for seed in seeds for s in SETTINGS for m in METHODS]
    with options.results.open("a") as file:
        for setting, method, seed in wanted:
            if (setting, method, seed) not in done:
                record = done[setting, method, seed] = run(setting, method, seed)
                file.write(json.dumps(record) + "\n")
                file.flush()
    print(f"`{first_line}`; seeds {options.seeds}\n\n{table([done[key] for key in wanted])}")


if __name__ == "__main__":
    main()
