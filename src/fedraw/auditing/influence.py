"""Influence π_i = E[w_i 1{i ∈ B}]: the expected weight of a client in the global model.

Uniform weights need presence only. Rarity weights are a ratio, S_i over the sum X of the scores in
the buffer, and the mean of a ratio is an integral of exponentials: 1/X = ∫ e^(−uX) du. Under each
exponential the buffer still has a product form, so the integrand is known exactly (`presence`), and
a trapezoid rule in log u gives 1/X to a relative error of 1e-6 over its whole range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedraw.auditing.groups import Groups
from fedraw.auditing.methods import Rule
from fedraw.auditing.presence import check_fits, presence, subsets
from fedraw.auditing.sampling import capped_influence
from fedraw.core.rarity import weights_of_rarest
from fedraw.core.types import Floats, Ints
from fedraw.core.weighting import check_cap

STEP = 0.6  # in log u; the trapezoid rule's error is then 6e-7
SMALL, LARGE = 1e-3, 18.0  # u X at both ends: the integrand is flat below, zero above


def kept(groups: Groups, size: int, rule: Rule) -> Ints | None:
    """The groups of the clients whose last update replay keeps, whoever arrives; else None."""
    return groups.rarest[:size] if rule.weighting == "replay" else None


def influence(groups: Groups, size: int, rule: Rule) -> Floats:
    """The influence of one client in each group; it sums to one over all clients.

    >>> from fedraw.auditing.methods import RULES
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
    """For independent slots: π_i = K p_i S_i ∫ e^(−u S_i) φ(u)^(K−1) du."""
    shares, score = groups.shares, groups.score
    total = np.zeros(shares.size)
    for u, width in _nodes(groups.score, size):
        mean = float((shares * groups.many * np.exp(-u * score)).sum())
        total += width * np.exp(-u * score) * mean ** (size - 1)
    return size * shares * score * (total + _flat_part(score, size))


def _rarity_dedup(groups: Groups, size: int) -> Floats:
    """For one slot per client: π_i = S_i ∫ P_u(i ∈ B) · e_K(p e^(−uS)) / e_K(p) du."""
    log_shares, score, many = np.log(groups.shares), groups.score, groups.many
    plain = subsets(log_shares, size, many)
    total = plain.presence * _flat_part(score, size)
    for u, width in _nodes(score, size):
        tilted = subsets(log_shares - u * score, size, many)
        ratio = tilted.log_weight - plain.log_weight
        if ratio < -745:  # e^ratio underflows to zero from here on
            break
        total += width * math.exp(min(ratio, 0.0)) * tilted.presence
    return np.asarray(score * total, np.float64)


def _nodes(score: Floats, size: int) -> Iterator[tuple[float, float]]:
    """Nodes u with their widths du = h u, from small u X to large u X."""
    first = SMALL / (size * float(score.max()))
    points = math.ceil(math.log(LARGE / (size * float(score.min())) / first) / STEP) + 1
    return ((u, STEP * u) for u in (first * math.exp(STEP * k) for k in range(points)))


def _flat_part(score: Floats, size: int) -> float:
    """The sum over all nodes below the first, where e^(−uX) is one: a geometric series."""
    return STEP * SMALL / (size * float(score.max())) / math.expm1(STEP)


def replay_influence(
    shares: Floats, many: Ints, replayed: Ints, weight: Floats, size: int
) -> Floats:
    """The influence of one client in each group under residual replay.

    A round is K arrivals, each from client i with probability p_i. `replayed` are the groups R of
    replayed clients, one client each, and `weight` their weights W. Once every client in R has been
    received, r in R weighs W_r whoever arrived, and the other arrivals share 1 − ρ with
    ρ = Σ_R W_r. Only if all K arrivals come from R, which has the probability q = (Σ_R p)^K, do
    the clients in R share everything, W_r / ρ each. Hence

        π_r = W_r (1 − q) + q W_r / ρ        π_i = (1 − ρ) (1 − q) p_i / Σ_C p     for i in C, not R

    The weight is a client's share in a step. The part of r's update that is applied is
    max(0, 1 − p_r) times W_r: nothing once the model has followed it, and more than W_r where other
    updates have undone more than that.

    >>> halves = np.array([0.5, 0.25, 0.25])
    >>> replay_influence(halves, np.ones(3, np.int64), np.array([2]), np.array([0.4]), 1)
    array([0.3 , 0.15, 0.55])
    """
    common = np.ones(shares.size, np.bool_)
    common[replayed] = False
    left = float((shares * many)[common].sum())
    rho = float(weight.sum())
    # 1 − q, which is tiny if other clients hardly ever arrive.
    others = 1.0 if left >= 1 else float(-np.expm1(size * np.log1p(-left)))
    found = np.where(common, (1 - rho) * others * shares / left, 0.0)
    found[replayed] = weight * (others + (1 - others) / rho) if rho else 0.0
    return found
