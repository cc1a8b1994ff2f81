"""The label table of a federation as a server sees it that receives no histograms."""

from __future__ import annotations

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats
from fedraw.privacy.budget import Privacy
from fedraw.privacy.response import estimated_coverage, simulated_sums
from fedraw.privacy.scores import simulated_scores


def private_table(table: LabelTable, privacy: Privacy, rng: np.random.Generator) -> LabelTable:
    """Return a table that gives the server the clients' scores, but not their labels.

    Every client computes its score from its true shares and the published coverage. The result has
    one label for each client, whose share is that score, so its `rarity_scores` are the clients'
    scores. It is for simulation: the noise has the right distribution but comes from `rng`.

    >>> true = LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
    >>> seen = private_table(true, Privacy("secure-sum"), np.random.default_rng(1))
    >>> seen.labels, seen.share
    (("score of 'a'", "score of 'b'"), array([0.5 , 0.75]))
    """
    coverage = published_coverage(table, privacy, rng)
    scores = np.add.reduceat(table.share / coverage[table.column], table.start[:-1])
    if privacy.score_epsilon is not None:
        scores = simulated_scores(scores, len(table), privacy.score_epsilon, rng)
    own = np.arange(len(table))
    labels = tuple(f"score of {client!r}" for client in table.clients)
    start, count = np.arange(len(table) + 1), np.ones(len(table), np.int64)
    return LabelTable(table.clients, labels, start, own, count, scores)


def published_coverage(table: LabelTable, privacy: Privacy, rng: np.random.Generator) -> Floats:
    """Return the coverage of each label of the table, as far as the server learns it."""
    true = table.coverage()
    if privacy.mechanism == "secure-sum":
        return true.astype(np.float64)
    epsilon = privacy.epsilon_per_bit(len(table.labels))
    sums = simulated_sums(true, len(table), epsilon, rng)
    return estimated_coverage(sums, len(table), epsilon)
