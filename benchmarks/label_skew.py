"""Measures losses for label skew, FedLC and logit adjustment, under four methods on digits.

    python -m benchmarks.label_skew [--out runs/label-skew] [--events 3000] [--jobs 1]
                                    [--methods fedbuff,fedraw,fedraw-replay,ca2fl] [--joint]

Labels 8 and 9 are on two of 30 clients each, which are ten times as slow as the others. The server
learning rate of a method is tuned with cross-entropy, and then tau of each loss at that rate, on
the tuning seeds and with a third of the events. With --joint, the rate and tau of each loss are
tuned together, which takes three times as long. "Masks alone" is FedLC with a tau of 0.001, which
only masks the labels that a client lacks. The table is for the test seeds: means of the last five
evaluations ± sd over the seeds, and the last model before and after CCVR calibrates its output
layer. Runs are stored in the folder, and a second call continues after an interruption. The chosen
values, with a note if they are at the edge of the grid, are printed to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.machine import headline, mean_and_spread

import fedraw
from fedraw.experiment.calibrating import calibrated
from fedraw.experiment.evaluation import Evaluator
from fedraw.experiment.result import SeedResult
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec

METHODS = ("fedbuff", "fedraw", "fedraw-replay", "ca2fl")
RATES = (1, 2, 4, 8)
TAUS = (0.1, 0.5, 1)
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "cross-entropy": {},
    "FedLC": {"training.loss": "fedlc"},
    "adjusted, local": {"training.loss": "logit-adjusted"},
    "adjusted, global": {"training.loss": "logit-adjusted", "training.prior": "global"},
    "masks alone": {"training.loss": "fedlc", "training.tau": 0.001},
}
TUNING_SEEDS, TEST_SEEDS = (1, 2, 3), (42, 123, 456)
METRICS = ("GlobalAcc", "AvgRare")
RATE = "strategy.server_lr"


def base(method: str, events: int) -> Spec:
    """Return the spec of a method before tuning."""
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "speeds": {"kind": "ratio", "ratio": 10},
            "strategy": {"name": method},
            "run": {"events": events, "evaluate_every": 100, "seeds": list(TEST_SEEDS)},
        }
    )


def tuned(spec: Spec, over: dict[str, Sequence[float]], place: Path, jobs: int) -> Spec | None:
    """Return the spec with the best point of the grid; None if every point collapsed."""
    tuning = fedraw.tune(
        spec,
        over=over,
        seeds=TUNING_SEEDS,
        events=spec.run.events // 3,
        executor="batched",
        out=place,
        resume=place.exists(),
        jobs=jobs,
        progress=False,
    )
    print(f"{place.name}\n{tuning}", file=sys.stderr)
    return None if tuning.best is None else tuning.spec


def measured(spec: Spec, place: Path, jobs: int) -> str:
    """Return the results of the test seeds as cells of a row."""
    runs = fedraw.simulate(
        spec, executor="batched", out=place, resume=place.exists(), jobs=jobs, progress=False
    ).runs
    calibrating = spec.with_changes({"calibration.kind": "ccvr"})
    after = [calibrated_metrics(calibrating, run) for run in runs]
    cells = []
    for metric in METRICS:
        tail = [float(run.summary["tail"][metric]) for run in runs]
        cells.append(mean_and_spread(tail))
    for metric in METRICS:
        last = fmean(float(run.summary["metrics"][metric]) for run in runs)
        cells.append(f"{last:.1f} → {fmean(metrics[metric] or 0.0 for metrics in after):.1f}")
    return " | ".join(cells)


def calibrated_metrics(spec: Spec, run: SeedResult) -> Mapping[str, float | None]:
    """Return the metrics of a run's last model after calibration, as with [calibration]."""
    assert run.seed is not None
    scenario = Scenario.of(spec, run.seed)
    model = calibrated(scenario, run.model)
    assert model is not None
    return Evaluator(scenario).measure(model)["metrics"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/label-skew"))
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--joint", action="store_true", help="tune rate and tau of a loss together")
    options = parser.parse_args()
    print(headline())
    after = (f"{metric}, last → calibrated" for metric in METRICS)
    heads = ("method", "loss", "server_lr", "tau", *METRICS, *after)
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n", flush=True)
    for method in options.methods.split(","):
        spec = base(method, options.events)
        rates: dict[str, Sequence[float]] = {} if method == "fedraw" else {RATE: RATES}
        if rates:
            spec = tuned(spec, rates, options.out / f"{method}-rate", options.jobs) or spec
        for name, changes in LOSSES.items():
            folder = options.out / f"{method}-{name.replace(', ', '-').replace(' ', '-')}"
            loss_spec: Spec | None = spec.with_changes(changes)
            if changes:
                over = dict(rates) if options.joint else {}
                over |= {} if "training.tau" in changes else {"training.tau": TAUS}
                folder = folder.with_name(folder.name + ("-joint" if options.joint else ""))
                if loss_spec is not None and over:
                    place = folder.with_name(f"{folder.name}-tau")
                    loss_spec = tuned(loss_spec, over, place, options.jobs)
            print(f"| {method} | {name} | {row(loss_spec, folder, options.jobs)} |", flush=True)


def row(spec: Spec | None, folder: Path, jobs: int) -> str:
    """Return the cells of a row after the method and the loss."""
    if spec is None:
        return " | ".join(["every point collapsed", *[""] * (1 + 2 * len(METRICS))])
    rate, loss = spec.strategy.settings.get("server_lr"), spec.training.loss
    tau = "–" if loss == "cross-entropy" else f"{spec.training.tau:g}"
    return f"{'–' if rate is None else f'{rate:g}'} | {tau} | {measured(spec, folder, jobs)}"


if __name__ == "__main__":
    main()
