"""How much of a run is training: time of the bare SGD steps / wall time of the run.

The bare steps are those of the run, taken from its log: the same clients' data, mini-batches of the
same sizes, the same module, in a plain torch loop with torch.optim.SGD and nothing else, one
process per core. `run` is `run_seed` with log, checkpoints and a last evaluation; `steady` leaves
out what comes before the first arrivals: loading, drawing clients, starting worker processes.
Above 100 % the run's own training loop is quicker than torch's plain one.
Run: make bench
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.machine import headline
from torch.nn import functional

from fedraw.core.randomness import Streams
from fedraw.data.dataset import Dataset, from_arrays
from fedraw.data.digits import digits
from fedraw.experiments.crew import Crew
from fedraw.experiments.event_log import read_log
from fedraw.experiments.run import How, run_seed
from fedraw.experiments.scenario import Parts
from fedraw.experiments.spec import Spec
from fedraw.learning import models

PROCESSES = get_context("spawn")


class Case(NamedTuple):
    name: str
    data: Callable[[], Dataset]
    training: dict[str, Any]
    updates: int
    repeats: int  # of which the median


def eight_by_eight() -> Dataset:
    return digits(np.random.default_rng(0))


def twenty_eight_by_twenty_eight() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.random((3_600, 1, 28, 28), np.float32)
    return from_arrays(images, np.arange(3_600) % 10, rng=rng)


MLP = {"model": "mlp", "epochs": 2, "batch": 16}
CNN = {"model": "cnn", "epochs": 1, "batch": 64}
CASES = (
    Case("digits, mlp", eight_by_eight, MLP, updates=2_000, repeats=3),
    Case("28x28, cnn", twenty_eight_by_twenty_eight, CNN, updates=200, repeats=2),
)


def spec_of(case: Case) -> Spec:
    return Spec.read(
        {
            "partition": {"rare_labels": [8, 9]},
            "training": case.training,
            "run": {"events": case.updates, "seeds": [1], "evaluate_every": case.updates},
        }
    )


def timed_run(case: Case, folder: Path, crew: Crew) -> tuple[float, float]:
    """Seconds of the whole run, and per update once it is under way."""
    told: list[tuple[int, float]] = []
    how = How(crew, force=True, progress=lambda e: told.append((e, time.perf_counter())))
    begun = time.perf_counter()
    run_seed(spec_of(case), 1, folder, Parts(data=case.data()), how)
    whole = time.perf_counter() - begun
    (first, start), (last, end) = told[0], told[-2]
    return whole, (end - start) / (last - first)


def sample_counts(folder: Path) -> list[int]:
    """How many samples each update of the run was trained on."""
    records = list(read_log(folder / "events.jsonl"))
    own = {r["client"]: sum(r["counts"].values()) for r in records if r["kind"] == "joined"}
    return [own[r["client"]] for r in records if r["kind"] == "arrival"]


def bare_steps(case: Case, counts: list[int], ready: Any, done: Any) -> None:
    """The same number of the same steps; the model is that of whoever trained before."""
    torch.set_num_threads(1)
    data, wanted = case.data(), spec_of(case).training
    rng = Streams(0).generator("initial model")
    module = models.build(wanted.model, data.input_shape, data.classes, rng).train()
    optimiser = torch.optim.SGD(module.parameters(), wanted.lr)
    images, labels = torch.from_numpy(data.images[:]), torch.from_numpy(data.labels)
    ready.wait()
    begun = time.perf_counter()
    for samples in counts:
        for _ in range(wanted.epochs):
            order = torch.randperm(samples)
            for batch in torch.split(order, wanted.batch):
                optimiser.zero_grad()
                torch.autograd.backward(
                    functional.cross_entropy(module(images[batch]), labels[batch])
                )
                optimiser.step()
    done.put(time.perf_counter() - begun)


def bare(case: Case, counts: list[int], processes: int) -> float:
    """Seconds of the slowest process."""
    ready, done = PROCESSES.Barrier(processes), PROCESSES.SimpleQueue()
    parts = [counts[i::processes] for i in range(processes)]
    workers = [PROCESSES.Process(target=bare_steps, args=(case, p, ready, done)) for p in parts]
    for worker in workers:
        worker.start()
    seconds = max(float(done.get()) for _ in workers)
    for worker in workers:
        worker.join()
    return seconds


def measure(case: Case, cores: int, folder: Path) -> None:
    crew = Crew() if cores == 1 else Crew("processes", cores)
    counts: list[int] = []
    whole, steady, plain = [], [], []
    for _ in range(case.repeats):
        seconds, each = timed_run(case, folder, crew)
        counts = counts or sample_counts(folder)
        whole.append(seconds)
        steady.append(each * len(counts))
        plain.append(bare(case, counts, cores))
    steps = median(plain)
    print(
        f"{case.name:>12} {cores:>6} {len(counts):>8} {steps:>9.2f} s {median(whole):>7.2f} s"
        f" {100 * steps / median(whole):>6.0f} % {100 * steps / median(steady):>7.0f} %"
    )


def main() -> None:
    print(headline())
    heads = f"{'':>12} {'cores':>6} {'updates':>8} {'bare steps':>11} {'run':>9}"
    print(f"{heads} {'ratio':>8} {'steady':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for cores in (1, 2):
                measure(case, cores, Path(folder))


if __name__ == "__main__":
    main()
