"""fedraw: FedBuff with a buffer of 10, all 30 clients in flight.

The timed part is from arrival 20 to the last one, with event log and checkpoints, without the
evaluation at the end. Loading, drawing clients and starting workers happen before arrival 20.
Workers have trained about the same number of updates ahead at both moments.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from benchmarks.peers import job as jobs
from benchmarks.peers.result import print_result
from benchmarks.peers.spent import Clock, Spent

import fedraw
from fedraw.core.types import Ints
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed


def in_order(labels: Ints, classes: int, rng: np.random.Generator) -> Sequence[Ints]:
    """Return the partition of `job.load`: consecutive equal parts."""
    return np.array_split(np.arange(len(labels)), jobs.CLIENTS)


def spec_of(job: jobs.Job, updates: int) -> fedraw.Spec:
    """Return the spec of the job."""
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
    """Return the data of all clients as one dataset."""
    images = np.concatenate([x.numpy() for x, _ in job.clients])
    labels = np.concatenate([y.numpy() for _, y in job.clients])
    return fedraw.from_arrays(
        images, labels, test_inputs=images[:30], test_labels=labels[:30], name=job.name
    )


def main() -> None:
    given = jobs.arguments(__doc__, "inline", "processes", "batched")
    job = jobs.load(given.job)
    jobs.warm_up(job)
    marks: list[tuple[int, Spent]] = []
    workers = 1 if given.variant == "inline" else given.cores
    options = Options(given.variant, workers, progress=measuring(marks, given.updates))
    spec, data = spec_of(job, given.updates), data_of(job)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(data=data, partition=in_order)
        result = run_seed(spec, spec.run.seeds[0], Path(folder) / "run", parts, options)
    (first, _), (last, spent) = marks[:2]
    print_result(
        *("fedraw", given),
        updates=last - first,
        steps=(last - first) * job.steps(0),  # the same for all clients
        spent=spent,
        packages=("fedraw",),
        note=f"final accuracy {result.summary['metrics']['GlobalAcc']:.0f} %",
    )


def measuring(marks: list[tuple[int, Spent]], last: int) -> Callable[[int], None]:
    """Return a progress callback that measures from the first call to the last arrival."""
    clock: list[Clock] = []

    def progress(event: int) -> None:
        if not clock:
            marks.append((event, Spent(0.0, 0.0, 0)))
            clock.append(Clock())
        elif event == last and len(marks) == 1:
            marks.append((event, clock[0].spent()))

    return progress


if __name__ == "__main__":
    main()
