"""Measures the overhead of a run: its wall time over the time of its SGD steps alone.

The bare steps are those of the run, according to its log: the same clients' data, mini-batches of
the same sizes and the same module, in a loop without anything else, in one process per core.
`plain` uses torch.optim.SGD; `best` has no optimiser (autograd.grad, _foreach_add_), one shuffled
copy per epoch and images with channels last. `run` is `run_seed` with log, checkpoints and a last
evaluation. `steady` excludes the time before the first arrivals: loading, drawing clients and
starting worker processes. Below 1, the run is faster than the loop.
Run: make bench
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.machine import headline
from torch import nn
from torch.nn import functional

from fedraw.core.randomness import Streams
from fedraw.data.arrays import from_arrays
from fedraw.data.catalog import digits
from fedraw.data.dataset import Dataset
from fedraw.eventlog import ArrivalRecord, JoinedRecord, read_log
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec
from fedraw.learning import models

PROCESSES = get_context("spawn")


class Case(NamedTuple):
    """One measured kind of run."""

    name: str
    data: Callable[[], Dataset]
    training: dict[str, Any]
    updates: int
    repeats: int  # the number of measurements of the median


def eight_by_eight() -> Dataset:
    """Return the digits."""
    return digits(np.random.default_rng(0))


def twenty_eight_by_twenty_eight() -> Dataset:
    """Return random images of 28 x 28 pixels."""
    rng = np.random.default_rng(0)
    images = rng.random((3_600, 1, 28, 28), np.float32)
    return from_arrays(images, np.arange(3_600) % 10, rng=rng)


MLP = {"model": "mlp", "epochs": 2, "batch": 16}
CNN = {"model": "cnn", "epochs": 1, "batch": 64}
CASES = (
    Case("digits, mlp", eight_by_eight, MLP, updates=2_000, repeats=3),
    Case("28x28, cnn", twenty_eight_by_twenty_eight, CNN, updates=400, repeats=3),
)


def spec_of(case: Case) -> Spec:
    """Return the spec of a case."""
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "training": case.training,
            "run": {"events": case.updates, "seeds": [1], "evaluate_every": case.updates},
        }
    )


def timed_run(case: Case, folder: Path, options: Options) -> tuple[float, float]:
    """Return the seconds of the whole run, and per update after the first arrivals."""
    times: list[tuple[int, float]] = []
    options = replace(options, progress=lambda e: times.append((e, time.perf_counter())))
    begin = time.perf_counter()
    run_seed(spec_of(case), 1, folder, Parts(data=case.data()), options)
    whole = time.perf_counter() - begin
    (first, start), (last, end) = times[0], times[-2]
    return whole, (end - start) / (last - first)


def sample_counts(folder: Path) -> list[int]:
    """Return the number of training samples of each update of the run."""
    records = list(read_log(folder / "events.jsonl"))
    samples = {r.client: sum(r.counts.values()) for r in records if isinstance(r, JoinedRecord)}
    return [samples[r.client] for r in records if isinstance(r, ArrivalRecord)]


def bare_steps(case: Case, counts: list[int], variant: str, ready: Any, done: Any) -> None:
    """Make the same number of the same steps; each update continues with the last model."""
    torch.set_num_threads(1)
    data, training = case.data(), spec_of(case).training
    rng = Streams(0).generator("initial model")
    module = models.build(training.model, data.input_shape, data.classes, rng).train()
    images, labels = torch.from_numpy(data.inputs[:]), torch.from_numpy(data.labels)
    epoch = {"plain": plain_epoch, "best": best_epoch}[variant](module, training.lr, training.batch)
    ready.wait()
    start = time.perf_counter()
    for samples in counts:
        for _ in range(training.epochs):
            epoch(images, labels, torch.randperm(samples))
    done.put(time.perf_counter() - start)


Epoch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def plain_epoch(module: nn.Module, lr: float, batch: int) -> Epoch:
    """Return an epoch with torch.optim.SGD."""
    optimiser = torch.optim.SGD(module.parameters(), lr)

    def epoch(images: torch.Tensor, labels: torch.Tensor, order: torch.Tensor) -> None:
        for rows in torch.split(order, batch):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(module(images[rows]), labels[rows]))
            optimiser.step()

    return epoch


def best_epoch(module: nn.Module, lr: float, batch: int) -> Epoch:
    """Return an epoch without an optimiser."""
    parameters: list[torch.Tensor] = list(module.parameters())

    def epoch(images: torch.Tensor, labels: torch.Tensor, order: torch.Tensor) -> None:
        x, y = images[order].to(memory_format=torch.channels_last), labels[order]
        for some, targets in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            loss = functional.cross_entropy(module(some), targets)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-lr)

    return epoch


def bare(case: Case, counts: list[int], processes: int, variant: str) -> float:
    """Return the seconds of the slowest process."""
    ready, done = PROCESSES.Barrier(processes), PROCESSES.SimpleQueue()
    parts = [counts[i::processes] for i in range(processes)]
    workers = [
        PROCESSES.Process(target=bare_steps, args=(case, part, variant, ready, done))
        for part in parts
    ]
    for worker in workers:
        worker.start()
    seconds = max(float(done.get()) for _ in workers)
    for worker in workers:
        worker.join()
    return seconds


def measure(case: Case, options: Options, folder: Path) -> None:
    """Print a row of the table."""
    cores = options.workers if options.has_workers else 1
    counts: list[int] = []
    times: dict[str, list[float]] = {"whole": [], "steady": [], "plain": [], "best": []}
    for _ in range(case.repeats):
        seconds, each = timed_run(case, folder, options)
        counts = counts or sample_counts(folder)
        times["whole"].append(seconds)
        times["steady"].append(each * len(counts))
        for variant in ("plain", "best"):
            times[variant].append(bare(case, counts, cores, variant))
    found = {name: median(seconds_taken) for name, seconds_taken in times.items()}
    ratios = [
        found[ours] / found[variant]
        for variant in ("plain", "best")
        for ours in ("whole", "steady")
    ]
    print(
        f"{case.name:>12} {options.executor:>10} {cores:>6} {len(counts):>8} "
        f"{found['plain']:>7.2f} s {found['best']:>6.2f} s {found['whole']:>6.2f} s "
        + " ".join(f"{ratio:>7.2f}" for ratio in ratios)
    )


def main() -> None:
    print(headline())
    heads = f"{'':>12} {'':>10} {'cores':>6} {'updates':>8} {'plain':>9} {'best':>8} {'run':>8}"
    print(f"{heads} {'/ plain':>8} {'steady':>6} {'/ best':>8} {'steady':>6}")
    inline, batched, processes, ray = (
        Options(force=True),
        Options("batched", force=True),
        Options("processes", 2, force=True),
        Options("ray", 2, force=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        for case, executors in zip(
            CASES, ((inline, batched, processes, ray), (inline, processes, ray)), strict=True
        ):
            for options in executors:
                measure(case, options, Path(folder))


if __name__ == "__main__":
    main()
