"""Measures how well labels are inferred from updates, and the cost of the inference.

For each dataset there is one run of FedRAW with labels = "inferred". After a client's first, third
and tenth update, the table has the area under the ROC curve of label presence (over all clients and
labels), the calibration error (ten bins), and the mean error of the label shares. The lines below
summarise the whole run, as in docs/research/evidence.md. The seed differs from those with which the
estimator was developed (1 and 2). The cost is that of a step of FedRAW with 11.2 million parameters
and 47 labels, alternately with declared, checked and inferred labels.

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
    """Return the scenario of a dataset with inferred labels."""
    setting = Scale.named("cpu").settings[dataset]
    tables: dict[str, Any] = {name: dict(table) for name, table in setting.spec.items()}
    if weights is not None and "features" in tables:
        tables["features"]["weights"] = str(weights)
    tables["partition"] = {"rare_labels": list(setting.rare)}
    tables["strategy"] = {"name": "fedraw", "labels": "inferred"}
    tables["run"]["events"] = EVENTS[dataset]
    return Scenario.of(Spec.from_dict(tables), SEED, None, Options(data_root=root))


def truth(scenario: Scenario) -> Matrix:
    """Return the share of each label (by model output) in each client's data."""
    names = scenario.clients.dataset.label_names
    shares = np.zeros((len(scenario.clients.table), len(names)))
    for client, counts in scenario.clients.table.counts().items():
        for label, count in counts.items():
            shares[int(client), names.index(str(label))] = count
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


class Inferred(NamedTuple):
    """The inferred labels of a client after an update."""

    client: int
    updates: int
    presence: Matrix
    share: Matrix
    rose: npt.NDArray[np.bool_]  # whether the label's evidence rose in this update


def inferred_labels(scenario: Scenario) -> Iterator[Inferred]:
    """Run the scenario, and yield the inferred labels of the client of every arrival."""
    dense = scenario.spec.training.model in ("linear", "mlp")
    with executor_of(scenario, Options("batched" if dense else "inline")) as executor:
        simulation = scenario.simulation(executor)
        for _ in range(scenario.spec.run.events):
            client = int(simulation.step().client)
            known = simulation.scorer.evidence[client]  # type: ignore[union-attr]
            arrays = known.presence.copy(), known.share.copy(), known.silence == 0
            yield Inferred(client, known.updates, *arrays)


def calibration_error(presence: Matrix, held: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error of the probabilities, over ten bins."""
    place = np.minimum((presence * 10).astype(int), 9)
    bins = [place == i for i in range(10) if (place == i).any()]
    return float(sum(abs(presence[b].mean() - held[b].mean()) * b.mean() for b in bins))


def estimate(dataset: str, root: Path | None, weights: Path | None) -> None:
    """Print the accuracy of the inferred labels of a dataset."""
    scenario = scenario_of(dataset, root, weights)
    shares = truth(scenario)
    every = list(inferred_labels(scenario))
    for k in AFTER:
        found = [one for one in every if one.updates == k]
        held = shares[[one.client for one in found]] > 0
        presence = np.stack([one.presence for one in found])
        area = roc_auc_score(held.ravel(), presence.ravel())
        calibration = calibration_error(presence.ravel(), held.ravel())
        error = share_error(found, shares)
        print(f"{dataset:9} {k:8} {len(found):8} {area:8.3f} {calibration:12.3f} {error:12.3f}")
    last = {one.client: one.presence for one in every}
    coverage = np.stack([np.where(p > 0.5, p, 0) for p in last.values()]).sum(axis=0)
    coverage_error = np.abs(coverage - (shares[list(last)] > 0).sum(axis=0)).mean()
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
        f"the final error of coverage is {coverage_error:.2f} clients per label",
        f"the output of a held label rises in {100 * rises:.0f} % of the updates",
        f"the error of shares is {early:.3f} in the first hundred updates, {late:.3f} in the last",
        f"rare labels are {true:.3f} of their holders' data, inferred {inferred:.3f}",
    ):
        print(f"{dataset:9} {line}", flush=True)


def share_error(found: Sequence[Inferred], shares: Matrix) -> float:
    """Return the mean absolute error of the inferred label shares."""
    return float(np.mean([np.abs(one.share - shares[one.client]).mean() for one in found]))


def cost() -> None:
    """Print the time of a step with declared, checked and inferred labels."""
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
            # As in training, outputs of absent labels fall, and most of those of held labels rise.
            change = np.where(holds[client], rng.normal(0.05, 0.06, classes), -0.05)
            update[-classes:] = state.model[-classes:] + change
            start = time.perf_counter()
            arrived = Arrived(Update(client, state.version, update, 10))
            strategy.step(state, arrived)
            if turn >= 90:
                times[name].append(time.perf_counter() - start)
    declared = median(times["declared"])
    for name, seconds in times.items():
        middle = median(seconds)
        print(f"{name:9} {middle * 1e3:7.1f} ms per arrival, x {middle / declared:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--only", nargs="*", default=list(EVENTS))
    options = parser.parse_args()
    print(headline())
    print(
        f"{'':9} {'updates':>8} {'clients':>8} {'area':>8} {'calibration':>12} {'share error':>12}"
    )
    for dataset in options.only:
        estimate(dataset, options.data, options.weights)
    cost()


if __name__ == "__main__":
    main()
