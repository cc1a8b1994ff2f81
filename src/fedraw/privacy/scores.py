"""A client's own rarity score, from its true shares and the published coverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.core.types import Floats, Ints, LabelCounts
from fedraw.errors import BadInput
from fedraw.privacy.budget import usable
from fedraw.privacy.opendp_library import opendp, within

# Noise is added to a whole number of steps, so it is exact and does not leak through rounding.
STEPS = 2**20


def score_from_coverage(counts: LabelCounts, coverage: Mapping[Any, float]) -> float:
    """Compute S = Σ_l freq(l) / coverage(l), as a client does before it sends the score.

    >>> score_from_coverage({"cat": 2, "dog": 2}, {"cat": 2, "dog": 1, "fox": 7.5})
    0.75
    """
    names = list(counts)
    count = whole_counts(list(counts.values()), lambda i: f"label {names[i]!r}")
    held = [name for name, n in zip(names, count, strict=True) if n]
    if not held:
        raise BadInput("a client without samples has no rarity score; leave it out")
    for name in held:
        if not coverage.get(name, 0) >= 1:
            raise BadInput(
                f"label {name!r} is held here, but its published coverage is {coverage.get(name)}; "
                "it must be at least 1 (do all clients use one list of labels?)"
            )
    share = count[count > 0] / count.sum()
    return float((share / np.array([coverage[name] for name in held])).sum())


def noised_score(score: float, clients: int, score_epsilon: float) -> float:
    """Add discrete Laplace noise to the score, and clip the result to 1/N..1.

    The noise is OpenDP's and has no seed. A score lies in (0, 1] whatever a client holds, so the
    sensitivity is 1: one label more or less may change the score as much as another client would.
    """
    noised = score_noise(score_epsilon)(int(_in_steps(np.array(score))))
    return float(_cut(np.array(noised), clients))


def score_noise(score_epsilon: float) -> Any:
    """Return OpenDP's discrete Laplace mechanism; its `map(STEPS)` is at most score_epsilon."""
    scale = STEPS / usable(score_epsilon, "score_epsilon")
    dp = opendp()
    steps = dp.atom_domain(T="i64"), dp.absolute_distance(T="i64")
    make = dp.m.make_laplace
    return within(score_epsilon, STEPS, lambda s: make(*steps, scale=s), scale, np.inf)


def simulated_scores(
    scores: Floats, clients: int, score_epsilon: float, rng: np.random.Generator
) -> Floats:
    """Draw `noised_score` for many clients from the same distribution, repeatably.

    This is NOT private, because it has a seed.

    >>> scores = simulated_scores(np.array([0.05, 0.5]), 30, 20.0, np.random.default_rng(1))
    >>> bool(np.all((scores >= 1 / 30) & (scores <= 1)))
    True
    """
    stop = -np.expm1(-usable(score_epsilon, "score_epsilon") / STEPS)
    up, down = rng.geometric(stop, scores.shape), rng.geometric(stop, scores.shape)
    return _cut(_in_steps(scores) + up - down, clients)


def _in_steps(scores: Floats) -> Ints:
    # Clipped before the noise, because the budget holds only for scores in this range.
    return np.rint(np.clip(scores, 0, 1) * STEPS).astype(np.int64)


def _cut(steps: Ints, clients: int) -> Floats:
    # No score is below 1/N, because every label has at most N holders.
    return np.clip(steps / STEPS, 1 / clients, 1)
