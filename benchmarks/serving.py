"""Compares the serving average of `run.serve = "ema"` with the last model.

    python -m benchmarks.serving [--events 3000] [--seeds 42,123,456] [--decay 0.99]

FedRAW learns digits on 30 clients. Labels 8 and 9 are on two clients each, which are 2 or 10 times
as slow as the others. A cell has the mean and the standard deviation of the last ten evaluations of
a run, averaged over the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.machine import headline

from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import EvaluationRecord
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec

RATIOS = (2, 10)
METRICS = ("GlobalAcc", "AvgRare")
LAST = 10


def spec(ratio: float, events: int, decay: float) -> Spec:
    """Return the spec of a run with a serving average."""
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "speeds": {"kind": "ratio", "ratio": ratio},
            "run": {"events": events, "evaluate_every": events // 30, "serve": "ema"}
            | ({} if decay == 0.99 else {"ema_decay": decay}),
        }
    )


def curves(run_spec: Spec, seed: int) -> list[tuple[Mapping[str, float | None], ...]]:
    """Return the metrics of the last model and of the average at each evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        run_seed(run_spec, seed, Path(folder) / "run", options=Options("batched"))
        records = list(read_log(Path(folder) / "run" / "events.jsonl"))
    found = [r for r in records if isinstance(r, EvaluationRecord) and r.serving is not None]
    return [(r.metrics, (r.serving or {})["metrics"]) for r in found]


def mean_and_sd(
    values: list[list[tuple[Mapping[str, float | None], ...]]], which: int, metric: str
) -> str:
    """Return the mean and the sd of a metric as text."""
    tails = [[(pair[which][metric] or 0.0) for pair in curve[-LAST:]] for curve in values]
    return f"{fmean(map(fmean, tails)):.1f} ± {fmean(map(stdev, tails)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--seeds", default="42,123,456")
    parser.add_argument("--decay", type=float, default=0.99)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(headline())
    print(f"{options.events} events, seeds {options.seeds}, ema_decay {options.decay:g}")
    print("| rare clients slower by | model | GlobalAcc | AvgRare |\n|---|---|---|---|")
    for ratio in RATIOS:
        runs = [curves(spec(ratio, options.events, options.decay), seed) for seed in seeds]
        for which, name in enumerate(("last", "ema")):
            cells = (mean_and_sd(runs, which, metric) for metric in METRICS)
            print(f"| {ratio}x | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
