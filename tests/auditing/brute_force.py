"""Every buffer there is, one by one; and the simulator's own buffers, counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from tests.simulation.scenes import simulation, steps

from fedraw.auditing.presence import Groups
from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarest
from fedraw.core.types import Floats
from fedraw.simulation.arrivals import poisson
from fedraw.strategies.protocol import Strategy

Law = Mapping[tuple[int, ...], float]  # chance of each buffer

BATCHES = 20

# A deadline would measure how busy the machine is.
CALM = settings(deadline=None, max_examples=60)


def subset_law(shares: Sequence[float] | Floats, size: int) -> Law:
    """P(B) ∝ Π p_i over all subsets of one size."""
    clients = range(len(shares))
    odds = {held: math.prod(shares[i] for i in held) for held in combinations(clients, size)}
    total = sum(odds.values())
    return {held: chance / total for held, chance in odds.items()}


def slot_law(shares: Sequence[float] | Floats, size: int) -> Law:
    """Every slot an independent draw."""
    sequences = product(range(len(shares)), repeat=size)
    return {slots: math.prod(shares[i] for i in slots) for slots in sequences}


def presence_in(law: Law, clients: int) -> Floats:
    return expected(law, clients, lambda slots: [1.0] * len(set(slots)), distinct=True)


def expected(
    law: Law,
    clients: int,
    weigh: Callable[[Sequence[int]], Sequence[float] | Floats],
    distinct: bool = False,
) -> Floats:
    """The mean of what each client weighs."""
    total = np.zeros(clients)
    for slots, chance in law.items():
        held = sorted(set(slots)) if distinct else slots
        for client, weight in zip(held, weigh(held), strict=True):
            total[client] += chance * weight
    return total


def one_by_one(rate: npt.ArrayLike, score: npt.ArrayLike | None = None) -> Groups:
    """Every client a group of its own."""
    rates = np.asarray(rate, np.float64)
    scores = np.ones(rates.size) if score is None else np.asarray(score, np.float64)
    alone = np.ones(rates.size, np.int64), np.arange(rates.size)
    return Groups(rates, scores, *alone, rarest(scores))


def together(rate: npt.ArrayLike, score: npt.ArrayLike, many: Sequence[int]) -> Groups:
    """Groups of `many` clients each."""
    counts = np.asarray(many, np.int64)
    rates, scores = np.asarray(rate, np.float64), np.asarray(score, np.float64)
    of_client = np.repeat(np.arange(counts.size), counts)
    return Groups(rates, scores, counts, of_client, np.zeros(0, np.int64))


class Measured(NamedTuple):
    """Means over a run, with their standard errors from batches."""

    presence: Floats
    presence_error: Floats
    influence: Floats
    influence_error: Floats


def measured(
    strategy: Strategy[Any], seconds: Floats, table: LabelTable, events: int, seed: int
) -> Measured:
    nothing = np.zeros(0, np.float32)  # a model without parameters costs nothing
    run = simulation(strategy, table, poisson(seconds, Streams(seed)), model=nothing)
    steps(run, events // BATCHES)
    present, weight = [], []
    for _ in range(BATCHES):
        told = [step.contents for step in steps(run, events // BATCHES) if step.aggregated]
        clients = np.concatenate([contents.clients for contents in told]).astype(np.int64)
        weights = np.concatenate([contents.weights for contents in told])
        row = np.repeat(np.arange(len(told)), [len(contents.clients) for contents in told])
        inside = np.zeros((len(told), seconds.size), np.bool_)
        inside[row, clients] = True
        present.append(inside.mean(0))
        weight.append(np.bincount(clients, weights, seconds.size) / len(told))
    found = np.array(present), np.array(weight)
    means = [batches.mean(0) for batches in found]
    errors = [batches.std(0, ddof=1) / math.sqrt(BATCHES) for batches in found]
    return Measured(means[0], errors[0], means[1], errors[1])
