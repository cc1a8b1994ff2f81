"""Slow poisoning just below a server's norm bound, with and without robust means, on digits.

One client of 30, the fastest without a rare label, sends its start model plus a vector of fixed
direction whose norm is 9.9 times the median of all clients' last norms. A server with the default
norm bound of 10 accepts this. The table has the last model's accuracy, its recall of the rare
labels, and its largest weight: without an attack (what the rule costs the honest rare clients), and
with it (what the rule is good for).

Run: python -m benchmarks.poisoning [--events 1500] [--seeds 42,123]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import numpy as np
from benchmarks.machine import headline

from fedraw.core.types import ClientId, Vector
from fedraw.experiment import runner
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.simulation.executors.base import Executor, Job, TrainingResult
from fedraw.simulation.perturbations.attacks import fastest

METHODS = ("fedraw", "fedfa", "fedbuff")
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip at 1": {"robust": "clip", "robust_at": 1.0},
    "clip at 2": {"robust": "clip", "robust_at": 2.0},
    "trim 0.1": {"robust": "trim", "robust_at": 0.1},
    "trim 0.2": {"robust": "trim", "robust_at": 0.2},
}
JUST_BELOW = 9.9


class Poisoned:
    """An executor in which one client pushes the model in one direction."""

    def __init__(self, executor: Executor, attacker: ClientId, seed: int) -> None:
        self._executor, self._attacker = executor, attacker
        self._rng = np.random.default_rng(seed)
        self._starts: dict[ClientId, Vector] = {}
        self._norms: dict[ClientId, float] = {}
        self._direction: Vector | None = None

    def submit(self, job: Job) -> None:
        self._starts[job.client] = job.model
        self._executor.submit(job)

    def collect(self, client: ClientId) -> TrainingResult:
        result, start = self._executor.collect(client), self._starts.pop(client)
        if client == self._attacker and self._norms:
            if self._direction is None:
                drawn = self._rng.normal(size=start.size)
                self._direction = np.asarray(drawn / np.linalg.norm(drawn), np.float32)
            size = np.float32(JUST_BELOW * median(self._norms.values()))
            result = result._replace(vector=start + size * self._direction)
        self._norms[client] = float(np.linalg.norm(result.vector - start))
        return result


def poisoning(seed: int) -> Callable[..., Any]:
    """`executor_of` of the runner, with an attacker in it."""
    honest = runner.executor_of

    @contextmanager
    def executor_of(scenario: Scenario, options: Options) -> Iterator[Executor]:
        clients = scenario.clients
        common = set(range(len(clients.table.clients))) - clients.rare
        (attacker,) = fastest(common, clients.seconds, 1)
        with honest(scenario, options) as executor:
            yield Poisoned(executor, attacker, seed)

    return executor_of


def spec(method: str, rule: str, events: int) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "strategy": {"name": method, **RULES[rule]},
            "run": {"events": events, "evaluate_every": events // 10},
        }
    )


def outcome(wanted: Spec, seed: int, attacked: bool) -> tuple[float, float, float]:
    with patch.object(runner, "executor_of", poisoning(seed) if attacked else runner.executor_of):
        result = runner.run_seed(wanted, seed, options=Options("batched"))
    metrics = result.summary["metrics"]
    assert result.model is not None
    return metrics["GlobalAcc"], metrics["AvgRare"], float(np.abs(result.model).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1500)
    parser.add_argument("--seeds", default="42,123")
    wanted = parser.parse_args()
    seeds = [int(seed) for seed in wanted.seeds.split(",")]
    print(headline())
    print(f"digits, 30 clients, {wanted.events} events, means of seeds {wanted.seeds}")
    columns = "GlobalAcc | AvgRare | largest weight"
    print(f"| method | mean | {columns} | attacked: {columns} |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for method in METHODS:
        for rule in RULES:
            cells = []
            for attacked in (False, True):
                runs = [outcome(spec(method, rule, wanted.events), s, attacked) for s in seeds]
                accuracy, rare, largest = map(fmean, zip(*runs, strict=True))
                cells += [f"{accuracy:.1f}", f"{rare:.1f}", f"{largest:.3g}"]
            print(f"| {method} | {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
