"""Finds sites whose mean of a label is far from that of the other holders of this label.

A site may send any sums that samples within the limits could have. What can be compared is the mean
of a label at one site with the median of its means at the others. The comparison uses all messages
at once, so it does not depend on their order, and it only names sites: hospitals differ honestly,
and removing a site is a decision. Where a label has fewer than three other holders, nothing can be
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedraw.core.sums import SumsShape
from fedraw.core.types import ClientId, Floats

# The fewest other holders whose median means something: one of three may lie.
FEWEST_OTHERS = 3
# A mean farther than so many pooled deviations is named.
FAR = 1.0
# How much of a squared distance the client's own n samples may explain, as a multiple of 1 / n. One
# is the expectation; correlated features and long tails make it larger.
_EXPLAINED = 4.0
# Features of a smaller variance are not compared, because the grid decides it.
_CONSTANT = 1e-6


class FarMean(NamedTuple):
    """A client's mean of a label, and how far it is from the others' median.

    The distance is in deviations of a sample within its label, as the root mean square of all
    features, less what the client's few samples explain.
    """

    client: ClientId
    label: int
    distance: float
    others: int


def far_means(
    shape: SumsShape, messages: Mapping[ClientId, Floats], totals: Floats, far: float = FAR
) -> list[FarMean]:
    """Return the means that are far from those of other holders, the farthest first."""
    clients = list(messages)
    counts = np.array([shape.counts(messages[c]) for c in clients]).reshape(-1, shape.labels)
    known, variances = _parts(shape, totals), []
    for client in clients:  # of all others, because its own numbers may be false
        own_parts = _parts(shape, messages[client])
        variances.append(_variance(*(a - b for a, b in zip(known, own_parts, strict=True))))
    found = []
    for label in np.flatnonzero((counts > 0).sum(axis=0) > FEWEST_OTHERS).tolist():
        own = np.flatnonzero(counts[:, label])
        means = np.array([shape.sums(messages[clients[i]])[label] for i in own])
        means /= counts[own, label][:, None]
        for place, i in enumerate(own):
            others = np.delete(means, place, axis=0)
            variance = variances[i]
            used = variance > _CONSTANT
            if not used.any():
                continue
            apart = means[place] - np.median(others, axis=0)
            square = (
                float(np.mean(apart[used] ** 2 / variance[used])) - _EXPLAINED / counts[i, label]
            )
            if square > far**2:
                found.append(FarMean(clients[i], label, square**0.5, len(others)))
    return sorted(found, key=lambda one: -one.distance)


def _parts(shape: SumsShape, message: Floats) -> tuple[Floats, Floats, Floats]:
    return shape.counts(message), shape.sums(message), shape.squares(message)


def _variance(counts: Floats, sums: Floats, squares: Floats) -> Floats:
    """Return the variance of each feature within labels."""
    held = counts > 0
    means = sums[held] / counts[held][:, None]
    within = squares - (counts[held][:, None] * means**2).sum(axis=0)
    return np.asarray(within / max(1.0, counts.sum() - held.sum()))
