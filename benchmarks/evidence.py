"""How well updates tell which labels stand behind them, and what looking costs.

Of each data set one run of FedRAW with labels = "inferred". After a client's first, third and tenth
update: the area under the curve of presence (holder of a label or not, all clients and labels), the
calibration error (ten bins), and the mean error of the shares; then what docs/research/evidence.md
says of the whole run. Seeds here are not those on which the estimator was found (1 and 2). Cost: a
step of FedRAW with 11.2 million parameters and 47 labels, declared, inferred and checked in turn.

Run: python -m benchmarks.evidence [--data ROOT] [--weights RESNET18] [--only digits …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.machine import headline
from sklearn.metrics import roc_auc_score

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.update import Update
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Arrived, Setup
from fedraw.strategies.scoring import LabelEvidence
from fedraw_studies.artefacts import Scale

SEED = 42
AFTER = (1, 3, 10)
EVENTS = {"digits": 3000, "ham10000": 3000, "emnist": 1500, "cifar10": 1500}
REPEATS = 41
Matrix = npt.NDArray[np.float64]


def scenario_of(dataset: str, root: Path | None, weights: Path | None) -> Scenario:
    setting = Scale.named("cpu").settings[dataset]
    tables: dict[str, Any] = {name: dict(table) for name, table in setting.spec.items()}
    if weights is not None and "features" in tables:
        tables["features"]["weights"] = str(weights)
    tables["partition"] = {"rare_labels": list(setting.rare)}
    tables["strategy"] = {"name": "fedraw", "labels": "inferred"}
    tables["run"]["events"] = EVENTS[dataset]
    return Scenario.of(Spec.from_dict(tables), SEED, None, Options(data_root=root))


def truth(scenario: Scenario) -> Matrix:
    """The share of each label (by output) in each client's data."""
    names = scenario.clients.dataset.label_names
    shares = np.zeros((len(scenario.clients.table), len(names)))
    for client, counts in scenario.clients.table.counts().items():
        for label, count in counts.items():
            shares[int(client), names.index(str(label))] = count
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


class Seen(NamedTuple):
    """What is known of a client after an update of its."""

    client: int
    updates: int
    presence: Matrix
    share: Matrix
    rose: npt.NDArray[np.bool_]  # in this update


def seen(scenario: Scenario) -> Iterator[Seen]:
    dense = scenario.spec.training.model in ("linear", "mlp")
    with executor_of(scenario, Options("batched" if dense else "inline")) as executor:
        simulation = scenario.simulation(executor)
        for _ in range(scenario.spec.run.events):
            client = int(simulation.step().client)
            own = simulation.scorer.evidence[client]  # type: ignore[union-attr]
            known = own.presence.copy(), own.share.copy(), own.silence == 0
            yield Seen(client, own.updates, *known)


def calibration_error(presence: Matrix, held: npt.NDArray[np.bool_]) -> float:
    """How far, on average, a probability lies from the part of those given it that hold."""
    place = np.minimum((presence * 10).astype(int), 9)
    bins = [place == i for i in range(10) if (place == i).any()]
    return float(sum(abs(presence[b].mean() - held[b].mean()) * b.mean() for b in bins))


def estimate(dataset: str, root: Path | None, weights: Path | None) -> None:
    scenario = scenario_of(dataset, root, weights)
    shares = truth(scenario)
    every = list(seen(scenario))
    for k in AFTER:
        found = [one for one in every if one.updates == k]
        own = shares[[one.client for one in found]]
        presence, held = np.stack([one.presence for one in found]), own > 0
        area = roc_auc_score(held.ravel(), presence.ravel())
        wrong = calibration_error(presence.ravel(), held.ravel())
        error = share_error(found, shares)
        print(f"{dataset:9} {k:8} {len(found):8} {area:8.3f} {wrong:12.3f} {error:12.3f}")
    last = {one.client: one.presence for one in every}
    coverage = np.stack([np.where(p > 0.5, p, 0) for p in last.values()]).sum(axis=0)
    off = np.abs(coverage - (shares[list(last)] > 0).sum(axis=0)).mean()
    rises = np.concatenate([one.rose[shares[one.client] > 0] for one in every]).mean()
    early, late = share_error(every[:100], shares), share_error(every[-100:], shares)
    rare, holders = list(scenario.clients.rare_labels), scenario.clients.rare
    of_rare = [
        (shares[one.client, rare].sum(), one.share[rare].sum())
        for one in every
        if one.client in holders
    ]
    true, inferred = np.mean(of_rare, axis=0)
    for line in (
        f"coverage is off by {off:.2f} clients a label at the end",
        f"a label that is there rises in {100 * rises:.0f} % of the updates",
        f"shares are off by {early:.3f} in the first hundred updates, {late:.3f} in the last",
        f"rare labels are {true:.3f} of their holders' data, inferred {inferred:.3f}",
    ):
        print(f"{dataset:9} {line}", flush=True)


def share_error(found: Sequence[Seen], shares: Matrix) -> float:
    return float(np.mean([np.abs(one.share - shares[one.client]).mean() for one in found]))


def cost() -> None:
    classes, width, size = 47, 512, 11_200_000
    head = classes * (width + 1)
    parts = [("body", (size - head,)), ("fc.weight", (classes, width)), ("fc.bias", (classes,))]
    layout = Layout.of(parts)
    rng = np.random.default_rng(0)
    vectors = [rng.normal(scale=0.01, size=size).astype(np.float32) for _ in range(12)]
    names = tuple(map(str, range(classes)))
    table = LabelTable.from_counts({i: dict.fromkeys(names[i % 40 :], 3) for i in range(30)})
    modes: tuple[LabelEvidence, ...] = ("declared", "checked", "inferred")
    servers: dict[str, Any] = {}
    for mode in modes:
        strategy = FedRAW(labels=mode)
        setup = Setup(np.zeros(size, np.float32), table, layout, names)
        servers[mode] = strategy, strategy.start(setup)[0]
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    holds = np.array([[label >= i % 40 for label in range(classes)] for i in range(30)])
    for turn in range(90 + REPEATS):
        client, update = turn % 30, vectors[turn % len(vectors)]
        for name, (strategy, state) in servers.items():
            # As training does it: what a client lacks falls, what it has rises four times in five.
            change = np.where(holds[client], rng.normal(0.05, 0.06, classes), -0.05)
            update[-classes:] = state.model[-classes:] + change
            begun = time.perf_counter()
            arrived = Arrived(Update(client, state.version, update, 10))
            strategy.step(state, arrived)
            if turn >= 90:
                times[name].append(time.perf_counter() - begun)
    plain = median(times["declared"])
    for name, own in times.items():
        print(f"{name:9} {median(own) * 1e3:7.1f} ms an arrival, x {median(own) / plain:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--only", nargs="*", default=list(EVENTS))
    options = parser.parse_args()
    print(headline())
    print(
        f"{'':9} {'updates':>8} {'clients':>8} {'area':>8} {'calibration':>12} {'shares off':>12}"
    )
    for dataset in options.only:
        estimate(dataset, options.data, options.weights)
    cost()


if __name__ == "__main__":
    main()
