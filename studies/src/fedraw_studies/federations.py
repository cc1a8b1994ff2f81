"""Facts about the paper's federations that require neither training nor images.

The labels and sizes of clients and how often they reply follow from the labels of a data set, the
partition, the speeds and the seed. `paper/federations.toml` has the paper's statements.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedraw.auditing.presence import arrival_shares
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarity_scores
from fedraw.core.weighting import weights
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import Artefact, ArtefactRow, Basis, PaperValue, merged, study_file
from fedraw_studies.outcomes import Finding, Outcome, RowOutcome

FEDERATIONS = "federations"
_TRAINING_FREE = {"training": {"kind": "none"}}
_SLOTS = 10


@cache
def load_federations() -> Artefact:
    """Load the rows of `paper/federations.toml`, which no scale reduces."""
    file = study_file(FEDERATIONS)
    rows = tuple(_row(row, tuple(file["seeds"])) for row in file["rows"])
    columns = tuple(dict.fromkeys(metric for row in rows for metric in row.paper))
    return Artefact(
        FEDERATIONS,
        file["title"],
        file["caption"],
        rows,
        tuple(file["seeds"]),
        columns,
        basis=Basis.WEIGHTS,
    )


@cache
def federation_outcome() -> Outcome:
    """Return our values and the paper's for every row."""
    artefact = load_federations()
    return Outcome(artefact, "paper", tuple(map(_outcome, artefact.rows)))


def federation_facts(spec: Spec, seed: int) -> dict[str, float]:
    """Draw the clients of one seed and measure them.

    CommonSize and RareSize are the mean numbers of training samples of the clients without and
    with a rare label, RareLeast and RareMost the extremes of the latter; RareShare the share of
    clients with a rare label, in percent. OverUniform is the weight of the one rare client in a
    buffer of ten, relative to 1/10. RareUpdates is the expected number of updates of a rare client
    in the run. Imbalance is the size of the largest label of the data set over that of the smallest
    one. TestLeast and TestMost are the extremes of the numbers of test images of the rare labels.

    >>> spec = Spec.from_dict({"data": {"name": "cifar10-labels"}, "training": {"kind": "none"},
    ...     "partition": {"rare_labels": ["airplane", "frog"]}})
    >>> round(federation_facts(spec, 42)["CommonSize"])
    1069
    """
    clients = draw_clients(spec, Streams(seed))
    rare = np.isin(np.arange(len(clients.table)), list(clients.rare))
    sizes = np.array([len(own) for own in clients.epochs[0].indices])
    scores, shares = rarity_scores(clients.table), arrival_shares(clients.seconds)
    heavy = weights([scores[rare].mean()] + [scores[~rare].mean()] * (_SLOTS - 1))[0]
    held_out = np.bincount(clients.dataset.test_labels, minlength=clients.dataset.classes)
    every = np.bincount(clients.dataset.labels, minlength=clients.dataset.classes) + held_out
    tested = held_out[list(clients.rare_labels)]
    facts = {
        "CommonSize": sizes[~rare].mean(),
        "RareSize": sizes[rare].mean(),
        "RareLeast": sizes[rare].min(),
        "RareMost": sizes[rare].max(),
        "RareShare": 100 * rare.mean(),
        "OverUniform": _SLOTS * heavy,
        "RareUpdates": spec.run.events * shares[rare].mean(),
        "Imbalance": every.max() / every.min(),
        "TestLeast": tested.min(),
        "TestMost": tested.max(),
    }
    return {name: float(value) for name, value in facts.items()}


def _row(row: dict[str, Any], seeds: tuple[int, ...]) -> ArtefactRow:
    printed = {metric: PaperValue.of(text) for metric, text in row["paper"].items()}
    spec = Spec.from_dict(merged(_TRAINING_FREE, row["spec"]))
    own = {**printed, **dict.fromkeys(row.get("metrics", ()))}
    return ArtefactRow(row["label"], spec, own, seeds=seeds)


def _outcome(row: ArtefactRow) -> RowOutcome:
    facts = {seed: federation_facts(row.spec, seed) for seed in row.seeds}
    found = {
        metric: Finding.of(
            FEDERATIONS, row.label, metric, paper, {s: own[metric] for s, own in facts.items()}
        )
        for metric, paper in row.paper.items()
    }
    return RowOutcome(row.label, row.dataset, row.method, found, row.seeds)
