"""The average that `run.serve = "ema"` serves, beside the last model: level and swings.

    python -m benchmarks.serving [--events 3000] [--seeds 42,123,456] [--decay 0.99]

FedRAW learns digits on 30 clients; labels 8 and 9 are on two clients each, which are 2 or 10 times
as slow as the others. Level and swings are the mean and the standard deviation of the last ten
evaluations of a run, averaged over the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev

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
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "speeds": {"kind": "ratio", "ratio": ratio},
            "run": {"events": events, "evaluate_every": events // 30, "serve": "ema"}
            | ({} if decay == 0.99 else {"ema_decay": decay}),
        }
    )


def curves(wanted: Spec, seed: int) -> list[tuple[Mapping[str, float | None], ...]]:
    """The metrics of the last model and of the average, evaluation by evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        run_seed(wanted, seed, Path(folder) / "run", options=Options("batched"))
        records = list(read_log(Path(folder) / "run" / "events.jsonl"))
    found = [r for r in records if isinstance(r, EvaluationRecord) and r.serving is not None]
    return [(r.metrics, (r.serving or {})["metrics"]) for r in found]


def level_and_swing(
    values: list[list[tuple[Mapping[str, float | None], ...]]], which: int, metric: str
) -> str:
    own = [[(pair[which][metric] or 0.0) for pair in curve[-LAST:]] for curve in values]
    return f"{fmean(map(fmean, own)):.1f} ± {fmean(map(pstdev, own)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--seeds", default="42,123,456")
    parser.add_argument("--decay", type=float, default=0.99)
    wanted = parser.parse_args()
    seeds = [int(seed) for seed in wanted.seeds.split(",")]
    print(headline())
    print(f"{wanted.events} events, seeds {wanted.seeds}, ema_decay {wanted.decay:g}")
    print("| rare clients slower by | model | GlobalAcc | AvgRare |\n|---|---|---|---|")
    for ratio in RATIOS:
        runs = [curves(spec(ratio, wanted.events, wanted.decay), seed) for seed in seeds]
        for which, name in enumerate(("last", "ema")):
            cells = (level_and_swing(runs, which, metric) for metric in METRICS)
            print(f"| {ratio}x | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
