"""Measures methods and buffer sizes on federations of 3 to 12 sites, in 200 and 600 arrivals.

    python -m benchmarks.few_sites [--sites 3 4 6 8 12] [--seeds 1 2 3]

Four sites are the federation of the tutorial "Deploy on Flower": three hold the digits 0 to 7, and
the fourth alone holds 8 and 9. The others have a coverage partition: with 3 and 6 sites digit 9 is
on one site, and with 8 and 12 sites digits 8 and 9 are on one site each. Holders of a rare digit
take three times as long as the others. Every method meets the same sites at the same times. A cell
has GlobalAcc and AvgRare in percent: the mean of the last five evaluations, which are 10 arrivals
apart, with the sample standard deviation over the seeds. The last column has the time of 200
arrivals relative to FedAvg's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.machine import headline, mean_and_spread
from sklearn.datasets import load_digits

import fedraw
from fedraw.experiment.result import SeedResult

HORIZONS = (200, 600)
EVERY, TAIL = 10, 5  # arrivals between two evaluations, and the evaluations of a mean
SLOWNESS = 3.0
TRAIN = fedraw.SGD(epochs=5, batch=32, lr=0.3)  # as in the tutorial
METRICS = ("GlobalAcc", "AvgRare")


def federation(sites: int) -> dict[str, Any]:
    """Return the arguments of `fedraw.simulate` that describe the federation."""
    if sites == 4:
        return _tutorial()
    rare = [9] if sites < 8 else [8, 9]
    return {
        "data": "digits",
        "partition": fedraw.Coverage(
            clients=sites,
            rare_labels=rare,
            clients_per_rare_label=1,
            clients_per_common_label=round(sites * 2 / 3),
        ),
        "speeds": fedraw.Ratio(SLOWNESS),
    }


def _tutorial() -> dict[str, Any]:
    """Return the federation of the tutorial; every fifth image is held back for the test."""
    pixels, digits = load_digits(return_X_y=True)
    images, test = (pixels / 16).astype(np.float32), np.arange(len(digits)) % 5 == 0
    common = [np.flatnonzero(~test & (digits == digit)) for digit in range(8)]
    sites = [np.concatenate([own[i::3] for own in common]) for i in range(3)]
    sites.append(np.flatnonzero(~test & (digits >= 8)))
    return {
        "data": [(images[own], digits[own]) for own in sites],
        "test": (images[test], digits[test]),
        "speeds": [1.0, 1.0, 1.0, SLOWNESS],
        "rare_labels": [8, 9],
        "local_test": 0.0,
    }


def strategies(sites: int) -> dict[str, Any]:
    """Return the strategies by the name of their row."""
    found: dict[str, Any] = {"FedAvg": fedraw.FedAvg()}
    for size in sorted({2, 3, min(4, sites), max(2, sites // 2), sites}):
        found[f"FedRAW, K={size}"] = fedraw.FedRAW(buffer=size)
    for size in (max(2, sites // 2), sites):
        found[f"FedBuff, K={size}"] = fedraw.FedBuff(buffer=size)
        found[f"CA2FL, K={size}"] = fedraw.CA2FL(buffer=size)
        found[f"Replay, K={size}"] = fedraw.Replay(buffer=size)
        debt = fedraw.Replay(buffer=size, select="debt", target="mix")
        found[f"Debt replay, K={size}"] = debt
    return found


def cell(result: fedraw.Result, horizon: int) -> str:
    """Return the mean of the last evaluations until the horizon, and its spread over the seeds."""
    found = []
    for metric in METRICS:
        tails = [
            [e.metrics[metric] or 0.0 for e in run.evaluations if e.event <= horizon][-TAIL:]
            for run in result
        ]
        found.append(mean_and_spread([fmean(tail) for tail in tails]))
    return " / ".join(found)


def rows(sites: int, seeds: list[int]) -> Iterator[str]:
    """Yield the rows of the table for a federation."""
    waiting = None
    for name, strategy in strategies(sites).items():
        result = fedraw.simulate(
            strategy=strategy,
            **federation(sites),
            model="mlp",
            train=TRAIN,
            events=HORIZONS[-1],
            evaluate_every=EVERY,
            seeds=seeds,
            executor="batched",
            progress=False,
        )
        seconds = fmean(_seconds(run) for run in result)
        waiting = waiting or seconds
        cells = [cell(result, horizon) for horizon in HORIZONS]
        yield f"| {sites} | {name} | {' | '.join(cells)} | {seconds / waiting:.2f} |"


def _seconds(run: SeedResult) -> float:
    return next(e.time for e in run.evaluations if e.event >= HORIZONS[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sites", nargs="+", type=int, default=[3, 4, 6, 8, 12])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    print(f"`{headline()}`\n")
    heads = [f"{horizon} arrivals" for horizon in HORIZONS]
    print(f"| sites | method | {' | '.join(heads)} | time |")
    print(f"|--:|---|{'--:|' * (len(heads) + 1)}")
    for sites in options.sites:
        for row in rows(sites, options.seeds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
