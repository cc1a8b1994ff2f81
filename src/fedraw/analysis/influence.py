"""Influence π_i = E[w_i 1{i ∈ B}]: the weight a client has in the global model, on average.

Uniform weights need presence only. Rarity weights are a ratio, S_i over the sum X of the scores in
the buffer, and the mean of a ratio is an integral of exponentials: 1/X = ∫ e^(−uX) du. Under each
exponential the buffer still has a product form, so the integrand is known exactly (`product_form`),
and a trapezoid rule in log u gives 1/X to a relative error of 1e-6 over its whole range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedraw.analysis.capped import capped_influence
from fedraw.analysis.groups import Groups
from fedraw.analysis.presence import Buffer, check_fits, presence
from fedraw.analysis.product_form import subsets
from fedraw.analysis.replay import replay_influence
from fedraw.core.rarity import weights_of_rarest
from fedraw.core.types import Floats, Ints
from fedraw.core.weighting import Cap, check_cap

Weighting = Literal["uniform", "rarity", "cached", "replay"]

STEP = 0.6  # in log u; the rule's own error is then 6e-7
SMALL, LARGE = 1e-3, 18.0  # u X at both ends: below, the integrand is flat; above, it is nothing


@dataclass(frozen=True)
class Rule:
    """Who is in the buffer, and what a slot weighs."""

    buffer: Buffer
    weighting: Weighting
    cap: Cap = "none"
    cap_at: float = 1.0


RULES = {
    "fedfa": Rule("window", "uniform"),
    "fedbuff": Rule("blocks", "uniform"),
    "ca2fl": Rule("blocks", "cached"),
    "fedraw": Rule("dedup", "rarity"),
    "fedraw-replay": Rule("blocks", "replay"),
    "fedraw-dedup-only": Rule("dedup", "uniform"),
    "fedraw-weight-only": Rule("window", "rarity"),
}


def kept(groups: Groups, size: int, rule: Rule) -> Ints | None:
    """The groups of those whose last update stays, whoever arrives."""
    return groups.rarest[:size] if rule.weighting == "replay" else None


def influence(groups: Groups, size: int, rule: Rule) -> Floats:
    """The influence of one client of each group; over all clients it sums to one.

    >>> alone = np.zeros(3, bool)
    >>> three = Groups.of(np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0]), alone)
    >>> influence(three, 2, RULES["fedraw"]).round(4)
    array([0.3333, 0.2667, 0.4   ])
    """
    shares, many = groups.shares, groups.many
    if rule.buffer == "dedup":
        check_fits(size, shares, many)
    if rule.weighting == "cached":
        return np.full(shares.size, 1 / many.sum())
    if rule.weighting == "uniform":
        if rule.buffer == "dedup":
            return presence(shares, size, "dedup", many) / size
        return shares
    replayed = kept(groups, size, rule)
    if replayed is not None:
        weight = weights_of_rarest(groups.score[replayed], float((groups.score * many).sum()))
        return replay_influence(shares, many, replayed, weight, size)
    check_cap(rule.cap, rule.cap_at, size)
    if rule.cap != "none":
        found = capped_influence(groups, size, rule.buffer, rule.cap, rule.cap_at).mean
    elif rule.buffer == "dedup":
        found = _rarity_dedup(groups, size)
    else:
        found = _rarity_slots(groups, size)
    return np.asarray(found / (found * many).sum(), np.float64)


def _rarity_slots(groups: Groups, size: int) -> Floats:
    """Slots are independent draws: π_i = K p_i S_i ∫ e^(−u S_i) φ(u)^(K−1) du."""
    shares, score = groups.shares, groups.score
    total = np.zeros(shares.size)
    for u, width in _nodes(groups.score, size):
        mean = float((shares * groups.many * np.exp(-u * score)).sum())
        total += width * np.exp(-u * score) * mean ** (size - 1)
    return size * shares * score * (total + _flat_part(score, size))


def _rarity_dedup(groups: Groups, size: int) -> Floats:
    """π_i = S_i ∫ P_u(i ∈ B) · e_K(p e^(−uS)) / e_K(p) du."""
    log_shares, score, many = np.log(groups.shares), groups.score, groups.many
    plain = subsets(log_shares, size, many)
    total = plain.presence * _flat_part(score, size)
    for u, width in _nodes(score, size):
        tilted = subsets(log_shares - u * score, size, many)
        ratio = tilted.log_weight - plain.log_weight
        if ratio < -745:  # e^ratio is zero, from here on
            break
        total += width * math.exp(min(ratio, 0.0)) * tilted.presence
    return np.asarray(score * total, np.float64)


def _nodes(score: Floats, size: int) -> Iterator[tuple[float, float]]:
    """Points u and their widths du = h u, from where u X is small to where it is large."""
    first = SMALL / (size * float(score.max()))
    points = math.ceil(math.log(LARGE / (size * float(score.min())) / first) / STEP) + 1
    return ((u, STEP * u) for u in (first * math.exp(STEP * k) for k in range(points)))


def _flat_part(score: Floats, size: int) -> float:
    """All nodes below the first, where e^(−uX) is one: a geometric series."""
    return STEP * SMALL / (size * float(score.max())) / math.expm1(STEP)
