"""Measures what one site with false sums can do to one pass, and what notices it, on digits.

    python -m benchmarks.poisoned_sums [SEEDS]

One of 30 sites, the one with the most samples that has no rare label, sends

scaled        the sums of its samples times 8, just within the server's bound of 10 times the median
not declared  also as many samples of rare label 8 as it has in all, which it does not declare
declared      the same, and declares them; their features are those of its own samples
swapped       its samples under other labels: each common label gets the next one's features
swapped x100  the same a hundred times, and declares that many
declared x100 as "declared", a hundred times
moved         its most frequent label at 8 times the mean of rare label 8 of the others

"Refused by" is the check that refuses the message: the strategy's, or the server's bound on norms.
"Named" says whether the log names the site once everyone was heard (`core.sums_outliers`). Values
are means over seeds, in percent; a refused message leaves the federation without that site.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from benchmarks.machine import headline, mean_and_spread

import fedraw
from fedraw.core.labels import LabelTable
from fedraw.core.sums import Sums, SumsShape
from fedraw.core.types import ClientId
from fedraw.core.update import Update
from fedraw.errors import RefusedUpdate
from fedraw.experiment.clients import LocalData
from fedraw.experiment.scenario import Scenario
from fedraw.server.admission import check_norm
from fedraw.server.settings import ServerSettings
from fedraw.strategies.protocol import Arrived, Setup

RARE = (8, 9)
ATTACKS = (
    "honest",
    "absent",
    "scaled",
    "not declared",
    "declared",
    "declared x100",
    "swapped",
    "swapped x100",
    "moved",
)
SPEC = fedraw.Spec.from_dict(
    {
        "data": {"name": "digits"},
        "features": {"backbone": "convolutions"},
        "partition": {"rare_labels": list(RARE)},
        "strategy": {"name": "one-pass"},
    }
)
Samples = tuple[Any, Any]


class Sent(NamedTuple):
    """What the attacker sends, and the counts that it declares."""

    features: Any
    labels: Any
    times: int = 1
    hidden: bool = False  # whether the counts of label 8 are not declared


def attack_of(kind: str, own: Samples, others: Sequence[Samples]) -> Sent:
    """Return what an attacker with these samples sends."""
    features, labels = own
    moved = (labels + 1) % 8
    if kind == "scaled":
        return Sent(8 * features, labels)
    times = 100 if kind.endswith("x100") else 1
    if "declared" in kind:
        more = np.concatenate([labels, np.full(len(labels), RARE[0])])
        return Sent(np.concatenate([features, features]), more, times, kind == "not declared")
    if "swapped" in kind:
        return Sent(features, moved, times)
    if kind == "moved":
        rare = np.concatenate([x[y == RARE[0]] for x, y in others])
        false = features.copy()
        false[labels == np.bincount(labels).argmax()] = 8 * rare.mean(axis=0)
        return Sent(false, labels)
    return Sent(features, labels)


class Outcome(NamedTuple):
    """What became of one federation."""

    refused: str
    named: bool
    accuracy: float
    rare: float


def outcome(kind: str, seed: int) -> Outcome:
    """Return what one attack does in one federation."""
    scenario = Scenario.of(SPEC, seed)
    data, dataset = LocalData.of(scenario.clients), scenario.clients.dataset
    parts = [(data.inputs[data.rows(i)], data.targets[data.rows(i)]) for i in range(data.clients)]
    common = [i for i, (_, labels) in enumerate(parts) if not set(RARE) & set(labels.tolist())]
    attacker = max(common, key=lambda i: len(parts[i][1]))
    others = [own for i, own in enumerate(parts) if i != attacker]
    shape = SumsShape(dataset.classes, parts[0][0].shape[1])
    names, messages, declared = dataset.label_names, {}, {}
    for i, own in enumerate(parts):
        sent = attack_of(kind if i == attacker else "honest", own, others)
        messages[i] = shape.of_samples(sent.features, sent.labels) * sent.times
        counts = shape.counts(messages[i]) * (1 if not sent.hidden else np.arange(10) != RARE[0])
        declared[i] = {names[j]: int(counts[j]) for j in np.flatnonzero(counts)}
    order = [i for i in messages if i != attacker] + [attacker] * (kind != "absent")
    table: dict[ClientId, dict[str, int]] = {i: declared[i] for i in order}
    setup = Setup(scenario.setup.model, LabelTable.from_counts(table), scenario.setup.layout, names)
    strategy, refused = fedraw.OnePass(), ""
    norms: list[float] = []
    state, _ = strategy.start(setup)
    for i in order:
        norm = Sums().norm(messages[i], setup.layout)
        try:
            check_norm(str(i), norm, norms, 1e9, ServerSettings.norm_bound)
            vector: Any = messages[i]
            state, _ = strategy.step(state, Arrived(Update(i, 0, vector, sum(table[i].values()))))
            norms.append(norm)
        except RefusedUpdate as refusal:
            refused = "the bound on norms" if "norm" in str(refusal) else "declared counts"
            state.awaited.pop(i)
    weights, biases = np.split(state.model, [shape.labels * shape.features])
    inputs = dataset.test_inputs[:].reshape(len(dataset.test_labels), -1)
    best = np.argmax(inputs @ weights.reshape(shape.labels, -1).T + biases, axis=1)
    labels = dataset.test_labels
    recalls = [np.mean(best[labels == own] == own) for own in scenario.clients.rare_labels]
    named = f"client {attacker!r}:" in (state.finished or "")
    accuracy, rare = float(np.mean(best == labels)), float(np.mean(recalls))
    return Outcome(refused, named, 100 * accuracy, 100 * rare)


def main() -> None:
    """Print the table."""
    seeds = [9301 + i for i in range(int((*sys.argv[1:2], "5")[0]))]
    print(f"{headline()}; digits, 30 sites, {len(seeds)} seeds from 9301\n")
    print("| message of one site | refused by | named | GlobalAcc | AvgRare |")
    print("|---|---|--:|--:|--:|")
    for kind in ATTACKS:
        found = [outcome(kind, seed) for seed in seeds]
        refused = ", ".join(sorted({own.refused for own in found if own.refused})) or "–"
        named = f"{sum(own.named for own in found)} of {len(found)}"
        values = [mean_and_spread([o.accuracy for o in found]),
                  mean_and_spread([o.rare for o in found])]  # fmt: skip
        print(f"| {' | '.join([kind, refused, named, *values])} |", flush=True)


if __name__ == "__main__":
    main()
