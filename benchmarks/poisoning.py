"""Measures slow poisoning just below a server's norm bound, with and without robust means.

The data are digits. One client of 30, the fastest without a rare label, sends its start model plus
a vector whose norm is 9.9 times the median of all clients' last norms. A server with the default
norm bound of 10 accepts it. There are two such vectors:

one weight   the direction of one weight that honest training does not change, because it belongs to
             a pixel that is never set
reversed     the opposite of the change by the client's own training

The table has accuracy and recall of the rare labels without an attack, which is the cost of a rule
for honest rare clients, the largest weight after the first attack, and accuracy and recall after
the second.

Run: python -m benchmarks.poisoning [--events 1500] [--seeds 42,123]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from benchmarks.machine import headline

from fedraw.core.types import ClientId, Vector
from fedraw.experiment import runner
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of
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
Attack = Literal["none", "one weight", "reversed"]


class Poisoned:
    """An executor in which one client sends the update of the attack."""

    def __init__(self, executor: Executor, attacker: ClientId, attack: Attack) -> None:
        self._executor, self._attacker, self._attack = executor, attacker, attack
        self.trains_ahead = executor.trains_ahead
        self._starts: dict[ClientId, Vector] = {}
        self._norms: dict[ClientId, float] = {}

    def submit(self, job: Job) -> None:
        self._starts[job.client] = job.model
        self._executor.submit(job)

    def collect(self, client: ClientId) -> TrainingResult:
        result, start = self._executor.collect(client), self._starts.pop(client)
        if client == self._attacker and self._norms:
            change = start - result.vector
            if self._attack == "one weight":
                change = np.zeros_like(start)
                change[0] = 1
            size = JUST_BELOW * median(self._norms.values()) / float(np.linalg.norm(change))
            result = result._replace(vector=start + np.float32(size) * change)
        self._norms[client] = float(np.linalg.norm(result.vector - start))
        return result


def poisoning(attack: Attack) -> Callable[..., Any]:
    """Return `executor_of` with an attacker among the clients."""

    @contextmanager
    def poisoned(scenario: Scenario, options: Options) -> Iterator[Executor]:
        clients = scenario.clients
        common = set(range(len(clients.table.clients))) - clients.rare
        (attacker,) = fastest(common, clients.seconds, 1)
        with executor_of(scenario, options) as executor:
            yield Poisoned(executor, attacker, attack)

    return executor_of if attack == "none" else poisoned


def spec(method: str, rule: str, events: int) -> Spec:
    """Return the spec of a method with a rule."""
    return Spec.from_dict(
        {
            "partition": {"rare_labels": [8, 9]},
            "strategy": {"name": method, **RULES[rule]},
            "run": {"events": events, "evaluate_every": events // 10},
        }
    )


def outcome(run_spec: Spec, seed: int, attack: Attack) -> tuple[float, float, float]:
    """Return accuracy, rare recall (means of the last five evaluations) and the largest weight."""
    with patch.object(runner, "executor_of", poisoning(attack)):
        result = runner.run_seed(run_spec, seed, options=Options("batched"))
    tail = result.summary["tail"]
    assert result.model is not None
    return tail["GlobalAcc"], tail["AvgRare"], float(np.abs(result.model).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1500)
    parser.add_argument("--seeds", default="42,123")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(headline())
    print(f"digits, 30 clients, {options.events} events, means of seeds {options.seeds}")
    print("| method | mean | GlobalAcc | AvgRare | largest weight |", end="")
    print(" one weight: largest weight | reversed: GlobalAcc | AvgRare |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for method in METHODS:
        for rule in RULES:
            run_spec = spec(method, rule, options.events)
            honest, pushed, reverse = (
                [
                    fmean(values)
                    for values in zip(*(outcome(run_spec, s, a) for s in seeds), strict=True)
                ]
                for a in ("none", "one weight", "reversed")
            )
            cells = [*(f"{value:.1f}" for value in honest[:2]), f"{honest[2]:.3g}"]
            cells += [f"{pushed[2]:.3g}", *(f"{value:.1f}" for value in reverse[:2])]
            print(f"| {method} | {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
