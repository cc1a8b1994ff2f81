"""Measures what differential privacy costs one pass: AvgRare and GlobalAcc against epsilon.

    python -m benchmarks.private_sums --data FOLDER [--only digits,emnist] [--seeds 9301,9302]

Every site clips its samples and adds noise once, within epsilon and delta = 1e-5 for a sample
(`OnePass(epsilon=...)`). The number of sites matters as much as epsilon, because every message has
its own noise: 30 sites as in the paper, 6 sites, and one site that has everything, which is also
what a trusted server could reach that adds the noise once to the total. HAM10000 needs the weights
of a ResNet-18 in FOLDER/weights/resnet18.pth. Writes the figure one-pass-privacy.svg into
docs/research, and the table one-pass-privacy.md beside the results of benchmarks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from benchmarks.machine import headline, mean_and_spread

import fedraw
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.training import executor_of
from fedraw.report.drawing import Drawing, LineStyle, legend, on_white, svg_of

SEEDS = (9301, 9302, 9303, 9304, 9305)  # not used for the development of anything
EPSILONS = (1.0, 3.0, 8.0, None)
ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "research" / "one-pass-privacy.svg"
TABLE = ROOT / "benchmarks" / "results" / "one-pass-privacy.md"

RARE: dict[str, list[Any]] = {
    "digits": [8, 9],
    "emnist": [44, 45, 46],
    "ham10000": ["df", "vasc"],
}
TITLES = {"digits": "Digits", "emnist": "EMNIST", "ham10000": "HAM10000"}
RESNET = {
    "statistics": "estimated",
    "layers": [2, 3],
    "pool": "mean+std",
    "standardise": True,
}
# The maps of each data set; the first is that of the figure.
MAPS: dict[str, list[dict[str, Any]]] = {
    "digits": [
        {"backbone": "convolutions", "width": 540},
        {"backbone": "convolutions", "width": 64},
        {"backbone": "relu", "width": 64},
    ],
    "emnist": [
        {"backbone": "convolutions", "width": 540},
        {"backbone": "convolutions", "width": 128},
    ],
    "ham10000": [RESNET],
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "30 sites": {"clients": 30},
    "6 sites": {"clients": 6, "clients_per_rare_label": 1, "clients_per_common_label": 4},
    "1 site": {"kind": "iid", "clients": 1},
}
ALONE = "1 site, or a trusted server"
STYLES = {
    "1 site": LineStyle("#808080", ":", "^", False),
    "6 sites": LineStyle("#3c94c4", "--", "s", False),
    "30 sites": LineStyle("#c83c64", "-", "o", True),
}


class Row(NamedTuple):
    """The values of all seeds at one epsilon."""

    data: str
    features: str
    sites: str
    epsilon: float | None
    accuracy: list[float]
    rare: list[float]

    @property
    def cells(self) -> list[str]:
        """The cells of the row in the table."""
        budget = "no noise" if self.epsilon is None else f"{self.epsilon:g}"
        values = [mean_and_spread(self.accuracy), mean_and_spread(self.rare)]
        return [TITLES[self.data], self.features, self.sites, budget, *values]


def spec_of(data: str, features: dict[str, Any], sites: str, folder: Path) -> fedraw.Spec:
    """Return the spec of one federation."""
    partition = dict(PARTITIONS[sites])
    if sites != "1 site":
        partition["rare_labels"] = RARE[data]
    tables: dict[str, Any] = {
        "data": {"name": data},
        "features": features,
        "partition": partition,
        "metrics": {"rare_labels": RARE[data]},
        "strategy": {"name": "one-pass"},
    }
    if data == "ham10000":
        tables["data"] |= {"size": 128, "normalise": "imagenet"}
        tables["features"] = {**features, "weights": str(folder / "weights" / "resnet18.pth")}
    return fedraw.Spec.from_dict(tables)


def outcome(scenario: Scenario, epsilon: float | None, options: Options) -> tuple[float, float]:
    """Return accuracy and mean recall of the rare labels once every site was heard."""
    strategy = fedraw.OnePass(epsilon=epsilon)
    scenario = replace(scenario, strategy=strategy)
    with executor_of(scenario, options) as executor:
        simulation = scenario.simulation(executor)
        while simulation.finished is None:
            simulation.step()
        model = simulation.state.model
    dataset = scenario.clients.dataset
    inputs = dataset.test_inputs[:].reshape(len(dataset.test_labels), -1)
    width = inputs.shape[1]
    weights, biases = model[: -dataset.classes].reshape(-1, width), model[-dataset.classes :]
    best, labels = np.argmax(inputs @ weights.T + biases, axis=1), dataset.test_labels
    recalls = [np.mean(best[labels == own] == own) for own in scenario.clients.rare_labels]
    return 100 * float(np.mean(best == labels)), 100 * float(np.mean(recalls))


def measured(data: str, seeds: Sequence[int], folder: Path) -> Iterator[Row]:
    """Yield the rows of a data set."""
    options = Options(data_root=folder)
    for features in MAPS[data]:
        first = features == MAPS[data][0]
        name = "ResNet-18, 768" if data == "ham10000" else "{backbone}, {width}".format(**features)
        for sites in PARTITIONS if first else ("30 sites", "1 site"):
            spec = spec_of(data, features, sites, folder)
            found: dict[float | None, list[tuple[float, float]]] = {own: [] for own in EPSILONS}
            for seed in seeds:
                scenario = Scenario.of(spec, seed, options=options)
                for epsilon, own in found.items():
                    own.append(outcome(scenario, epsilon, options))
            for epsilon, own in found.items():
                accuracy, rare = (list(values) for values in zip(*own, strict=True))
                yield Row(data, name, sites, epsilon, accuracy, rare)


def table(rows: Sequence[Row], note: str) -> str:
    """Return the table in Markdown."""
    head = ["data", "features", "noise at", "epsilon", "GlobalAcc", "AvgRare"]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|--:|--:|--:|"]
    lines += [f"| {' | '.join(row.cells)} |" for row in rows]
    return f"{note}\n\n" + "\n".join(lines) + "\n"


def drawing(rows: Sequence[Row]) -> Drawing:
    """Return the figure: a panel for each data set, AvgRare against epsilon."""

    def draw() -> Any:
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(row.data for row in rows))
        figure = Figure(figsize=(3.1 * len(names), 3.2), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        places = {epsilon: place for place, epsilon in enumerate(EPSILONS)}
        for panel, name in zip(panels, names, strict=True):
            features = next(row.features for row in rows if row.data == name)
            for offset, (sites, style) in enumerate(STYLES.items()):
                line = [r for r in rows if (r.data, r.features, r.sites) == (name, features, sites)]
                across = [places[row.epsilon] + 0.06 * (offset - 1) for row in line]
                means = [fmean(row.rare) for row in line]
                spread = [stdev(row.rare) if len(row.rare) > 1 else 0.0 for row in line]
                panel.plot(across, means, **style.options())
                panel.errorbar(across, means, spread, fmt="none", ecolor=style.colour, capsize=2)
            panel.set_xticks(range(len(EPSILONS)))
            panel.set_xticklabels([*(f"{e:g}" for e in EPSILONS if e), "none"])
            panel.set(title=f"{TITLES[name]} ({features})", xlabel="epsilon (none: no noise)")
            panel.set_ylim(-3, 103)
            panel.grid(axis="y")
        panels[0].set_ylabel("AvgRare (%)")
        named = {ALONE if sites == "1 site" else sites: own for sites, own in STYLES.items()}
        legend(figure, named, len(named))
        return figure

    return Drawing("one-pass-privacy", "AvgRare of one pass against epsilon", draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--only", default=",".join(RARE))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    note = f"{headline()}; seeds {options.seeds}; mean ± standard deviation"
    rows: list[Row] = []
    for data in options.only.split(","):
        for row in measured(data, seeds, options.data):
            print(" | ".join(row.cells), flush=True)
            rows.append(row)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table(rows, note), encoding="utf-8")
    FIGURE.write_text(on_white(svg_of(drawing(rows))), encoding="utf-8")


if __name__ == "__main__":
    main()
