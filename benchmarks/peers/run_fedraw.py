"""fedraw through its public API: FedBuff with a buffer of 10, all 30 clients in flight.

Timed: from arrival 20 to the last one, with event log and checkpoints, without the evaluation at
the end. Loading, drawing clients and starting workers come before arrival 20. What a worker trains
ahead is as much at the first of these moments as at the last.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from benchmarks.peers import job as jobs
from benchmarks.peers.result import tell
from benchmarks.peers.spent import Clock, Spent

import fedraw
from fedraw.core.types import Ints
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed


def in_order(labels: Ints, classes: int, rng: np.random.Generator) -> Sequence[Ints]:
    """The clients of `job.load`: equal shares one after the other."""
    return np.array_split(np.arange(len(labels)), jobs.CLIENTS)


def spec_of(job: jobs.Job, updates: int) -> fedraw.Spec:
    model = {"digits": "mlp", "cnn": "cnn"}[job.name]
    return fedraw.Spec.from_dict(
        {
            "partition": {"clients": jobs.CLIENTS, "local_test": 0.0},
            "speeds": {"kind": "uniform"},
            "strategy": {"name": "fedbuff", "buffer": jobs.BUFFER},
            "training": {
                "model": model, "epochs": job.epochs, "batch": job.batch, "lr": job.lr
            },
            "run": {"events": updates, "seeds": [1], "evaluate_every": updates},
        }
    )  # fmt: skip


def data_of(job: jobs.Job) -> fedraw.Dataset:
    images = np.concatenate([x.numpy() for x, _ in job.clients])
    labels = np.concatenate([y.numpy() for _, y in job.clients])
    return fedraw.from_arrays(
        images, labels, test_inputs=images[:30], test_labels=labels[:30], name=job.name
    )


def main() -> None:
    given = jobs.arguments(__doc__, "inline", "processes", "batched")
    job = jobs.load(given.job)
    jobs.warm_up(job)
    told: list[tuple[int, Spent]] = []
    workers = 1 if given.variant == "inline" else given.cores
    options = Options(given.variant, workers, progress=noting(told, given.updates))
    spec, data = spec_of(job, given.updates), data_of(job)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(data=data, partition=in_order)
        result = run_seed(spec, spec.run.seeds[0], Path(folder) / "run", parts, options)
    (first, _), (last, spent) = told[:2]
    tell(
        *("fedraw", given),
        updates=last - first,
        steps=(last - first) * job.steps(0),  # the same at all clients
        spent=spent,
        packages=("fedraw",),
        note=f"final accuracy {result.summary['metrics']['GlobalAcc']:.0f} %",
    )


def noting(told: list[tuple[int, Spent]], last: int) -> Callable[[int], None]:
    """A clock that starts at the first arrivals and is read at the last, before the evaluation."""
    clock: list[Clock] = []

    def progress(event: int) -> None:
        if not clock:
            told.append((event, Spent(0.0, 0.0, 0)))
            clock.append(Clock())
        elif event == last and len(told) == 1:
            told.append((event, clock[0].spent()))

    return progress


if __name__ == "__main__":
    main()
