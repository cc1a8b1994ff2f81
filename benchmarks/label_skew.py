"""What losses for label skew change for four methods: FedLC and logit adjustment on digits.

    python -m benchmarks.label_skew [--out runs/label-skew] [--events 3000] [--jobs 1]

Labels 8 and 9 are on two of 30 clients each, which are ten times as slow as the others. The server
rate of each method that has one is tuned with cross-entropy, then tau of each loss at that rate;
both on the tuning seeds and on runs of a third of the length. The table is that of the test seeds:
means of the last five evaluations, ± sd over the seeds, and differences from cross-entropy. Runs
are kept in the folder, and a second call continues where the first was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from benchmarks.machine import headline

import fedraw
from fedraw.experiment.spec import Spec

METHODS = ("fedbuff", "fedraw", "fedraw-replay", "ca2fl")
RATES = (1, 2, 4, 8)
TAUS = (0.1, 0.5, 1)
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "cross-entropy": {},
    "FedLC": {"training.loss": "fedlc"},
    "adjusted, local": {"training.loss": "logit-adjusted"},
    "adjusted, global": {"training.loss": "logit-adjusted", "training.prior": "global"},
}
TUNING_SEEDS, TEST_SEEDS = (1, 2, 3), (42, 123, 456)
METRICS = ("GlobalAcc", "AvgRare")


def base(method: str, events: int) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "speeds": {"kind": "ratio", "ratio": 10},
            "strategy": {"name": method},
            "run": {"events": events, "evaluate_every": 100, "seeds": list(TEST_SEEDS)},
        }
    )


def tuned(spec: Spec, key: str, values: tuple[float, ...], place: Path, jobs: int) -> Spec:
    tuning = fedraw.tune(
        spec,
        over={key: values},
        seeds=TUNING_SEEDS,
        events=spec.run.events // 3,
        executor="batched",
        out=place,
        resume=place.exists(),
        jobs=jobs,
        progress=False,
    )
    print(f"<!-- {place.name}: {tuning.settings} {'; '.join(tuning.notes)} -->", flush=True)
    return tuning.spec


def tails(spec: Spec, place: Path, jobs: int) -> dict[str, list[float]]:
    result = fedraw.simulate(
        spec, executor="batched", out=place, resume=place.exists(), jobs=jobs, progress=False
    )
    return {m: [float(run.summary["tail"][m]) for run in result] for m in METRICS}


def row(own: Mapping[str, list[float]], plain: Mapping[str, list[float]]) -> str:
    cells = [f"{fmean(own[m]):.1f} ± {pstdev(own[m]):.1f}" for m in METRICS]
    changes = [fmean(own[m]) - fmean(plain[m]) for m in METRICS]
    return " | ".join(cells + ["" if own is plain else f"{change:+.1f}" for change in changes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/label-skew"))
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=1)
    wanted = parser.parse_args()
    print(headline())
    heads = ("method", "loss", "server_lr", "tau", *METRICS, *(f"Δ {m}" for m in METRICS))
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in METHODS:
        spec, rate = base(method, wanted.events), "–"
        if method != "fedraw":
            place = wanted.out / f"{method}-rate"
            spec = tuned(spec, "strategy.server_lr", RATES, place, wanted.jobs)
            rate = f"{spec.strategy.settings['server_lr']:g}"
        plain: dict[str, list[float]] = {}
        for name, changes in LOSSES.items():
            folder = wanted.out / f"{method}-{name.replace(', ', '-')}"
            own, tau = spec.with_changes(changes), "–"
            if changes:
                place = folder.with_name(f"{folder.name}-tau")
                own = tuned(own, "training.tau", TAUS, place, wanted.jobs)
                tau = f"{own.training.tau:g}"
            found = tails(own, folder, wanted.jobs)
            plain = plain or found
            lines.append(f"| {method} | {name} | {rate} | {tau} | {row(found, plain)} |")
            print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
