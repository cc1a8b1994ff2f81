"""Influence π_i = E[w_i 1{i ∈ B}]: the expected weight of a client in the global model.

Uniform weights need presence only. Rarity weights are a ratio, S_i over the sum X of the scores in
the buffer, and the mean of a ratio is an integral of exponentials: 1/X = ∫ e^(−uX) du. Under each
exponential the buffer still has a product form, so the integrand is known exactly (`presence`), and
a trapezoid rule in log u gives 1/X to a relative error of 1e-6 over its whole range.

A cap makes a weight depend on all scores in the buffer at once, so there is no product form.
Presence is still exact; only the mean weight of a client that is present is sampled, from buffers
drawn independently from the stationary distribution. Given that a client is in a deduplicated
buffer, the others are a (K − 1)-subset without it, of the same distribution. The weight of a client
that is in most buffers is averaged over those buffers instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedraw.auditing.methods import REPLAY, Buffer, Rule
from fedraw.auditing.participation import (
    corrected_influence,
    debt_influence,
    debtors,
    interval_influence,
    nodes,
    recent_influence,
    staleness_influence,
)
from fedraw.auditing.presence import (
    Groups,
    binomial_pmfs,
    check_fits,
    coin_scale,
    convolve,
    heads,
    presence,
    subsets,
)
from fedraw.core.rarity import weights_of_rarest
from fedraw.core.types import Floats, Ints
from fedraw.core.weighting import Cap, check_cap, weights_of_rows
from fedraw.strategies import fedstaleweight

# Under a cap:
WORK = 4 * 10**6  # the maximum number of slots to weight: draws x groups x slots
FEWEST_DRAWS, MOST_DRAWS = 200, 2000
# The weightings of `participation`, and FedAvg's: each costs little for every single client.
PARTICIPATION = ("debt", "intervals", "corrected", "staleness", "contact", "started", "samples")
# Drawing until all slots differ is cheap if the slots differ in at least this share of the draws.
OFTEN_ENOUGH = 0.02


def kept(groups: Groups, size: int, rule: Rule) -> Ints | None:
    """Return the groups of the clients whose last update replay keeps; None for other rules."""
    if rule.weighting == "debt":
        taken = debtors(groups.shares, groups.wanted(rule.target), size, groups.many)
        return np.flatnonzero(taken)
    return groups.rarest[:size] if rule.weighting == "replay" else None


def influence(groups: Groups, size: int, rule: Rule) -> Floats:
    """Return the influence of one client in each group; it sums to one over all clients.

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
    if rule.weighting in PARTICIPATION:
        return _by_participation(groups, size, rule)
    if rule.weighting == "uniform":
        if rule.buffer == "dedup":
            return presence(shares, size, "dedup", many) / size
        return shares
    replayed = kept(groups, size, rule)
    if replayed is not None:
        total = float((groups.score * many).sum())
        weight = weights_of_rarest(groups.score[replayed], total, REPLAY.mass)
        return replay_influence(shares, many, replayed, weight, size)
    check_cap(rule.cap, rule.cap_at, size)
    if rule.cap != "none":
        found = capped_influence(groups, size, rule.buffer, rule.cap, rule.cap_at)
    elif rule.buffer == "dedup":
        found = _rarity_dedup(groups, size)
    else:
        found = _rarity_slots(groups, size)
    return np.asarray(found / (found * many).sum(), np.float64)


def _by_participation(groups: Groups, size: int, rule: Rule) -> Floats:
    shares, many = groups.shares, groups.many
    match rule.weighting:
        case "samples":
            return groups.wanted("samples")
        case "debt":
            return debt_influence(shares, many, groups.wanted(rule.target), size, REPLAY.mass)
        case "intervals":
            return interval_influence(shares, many, size, rule.cutoff)
        case "corrected":
            return corrected_influence(shares, many, size, rule.cutoff, rule.beta)
        case "staleness":
            return staleness_influence(shares, many, size, fedstaleweight.WINDOW, rule.offset)
    slots = rule.slots(size, int(many.sum()))
    return recent_influence(shares, many, slots, 2 if rule.weighting == "started" else 1)


def _rarity_slots(groups: Groups, size: int) -> Floats:
    """Return π_i = K p_i S_i ∫ e^(−u S_i) φ(u)^(K−1) du, for independent slots."""
    shares, score = groups.shares, groups.score
    total = np.zeros(shares.size)
    for u, width in _nodes(groups.score, size):
        mean = float((shares * groups.many * np.exp(-u * score)).sum())
        total += width * np.exp(-u * score) * mean ** (size - 1)
    return size * shares * score * total


def _rarity_dedup(groups: Groups, size: int) -> Floats:
    """Return π_i = S_i ∫ P_u(i ∈ B) · e_K(p e^(−uS)) / e_K(p) du, for one slot per client."""
    log_shares, score, many = np.log(groups.shares), groups.score, groups.many
    plain = subsets(log_shares, size, many)
    total = np.zeros(score.size)
    for u, width in _nodes(score, size):
        tilted = subsets(log_shares - u * score, size, many)
        ratio = tilted.log_weight - plain.log_weight
        if ratio < -745:  # e^ratio underflows to zero from here on
            break
        total += width * math.exp(min(ratio, 0.0)) * tilted.presence
    return np.asarray(score * total, np.float64)


def _nodes(score: Floats, size: int) -> Iterator[tuple[float, float]]:
    """Return the nodes of `nodes` for 1/X, where X is the sum of K scores."""
    return nodes(size * float(score.min()), size * float(score.max()))


def replay_influence(
    shares: Floats, many: Ints, replayed: Ints, weight: Floats, size: int
) -> Floats:
    """Return the influence of one client in each group under residual replay.

    A round is K arrivals, each from client i with probability p_i. `replayed` are the groups R of
    replayed clients, one client each, and `weight` their weights W. Once every client in R has sent
    an update, r in R always has the weight W_r, and the other arrivals share 1 − ρ, where
    ρ = Σ_R W_r. Only if all K arrivals come from R, with probability q = (Σ_R p)^K, do the clients
    in R share everything, W_r / ρ each. Hence

        π_r = W_r (1 − q) + q W_r / ρ        π_i = (1 − ρ) (1 − q) p_i / Σ_C p     for i in C, not R

    The weight is a client's share in a step. The part of r's update that is applied is
    max(0, 1 − p_r) times W_r: nothing once the model has realised the update, and more than W_r if
    other updates have undone more than that.

    >>> halves = np.array([0.5, 0.25, 0.25])
    >>> replay_influence(halves, np.ones(3, np.int64), np.array([2]), np.array([0.4]), 1)
    array([0.3 , 0.15, 0.55])
    """
    common = np.ones(shares.size, np.bool_)
    common[replayed] = False
    left = float((shares * many)[common].sum())
    rho = float(weight.sum())
    # 1 − q, which is tiny if the other clients rarely arrive.
    others = 1.0 if left >= 1 else float(-np.expm1(size * np.log1p(-left)))
    found = np.where(common, (1 - rho) * others * shares / left, 0.0)
    found[replayed] = weight * (others + (1 - others) / rho) if rho else 0.0
    return found


def capped_influence(
    groups: Groups, size: int, buffer: Buffer, cap: Cap, cap_at: float, seed: int = 0
) -> Floats:
    """Estimate the influence of one client in each group under rarity weights with a cap."""
    rng, score = np.random.default_rng(seed), groups.score
    draws = int(np.clip(WORK // (score.size * size), FEWEST_DRAWS, MOST_DRAWS))
    others = draw_buffers(groups, size - 1, buffer, draws, rng)
    slots, alone = size * groups.shares, np.ones((score.size, draws))
    if buffer == "dedup":
        slots = presence(groups.shares, size, "dedup", groups.many)
        # A draw that holds one of `many` similar clients is without each with this probability.
        for group, many in enumerate(groups.many.tolist()):
            alone[group] -= (others == group).sum(axis=1) / many
    rows, mean = np.empty((draws, size)), np.zeros(score.size)
    rows[:, 1:] = score[others]
    for group in range(score.size):
        rows[:, 0] = score[group]
        beside = weights_of_rows(rows, cap, cap_at)[:, 0]
        mean[group] = (beside * alone[group]).sum() / max(alone[group].sum(), 0.5)
    crowded = np.flatnonzero((slots > 0.5) & (buffer == "dedup"))
    if crowded.size:  # few draws of the others are without these
        held = draw_buffers(groups, size, "dedup", draws, rng)
        weight = weights_of_rows(score[held], cap, cap_at)
        mean[crowded] = [weight[held == group].mean() for group in crowded]
    return np.asarray(slots * mean)


def draw_buffers(
    groups: Groups, size: int, buffer: Buffer, draws: int, rng: np.random.Generator
) -> Ints:
    """Draw buffers of `size` slots; each entry is the group of the client in that slot.

    >>> three = Groups.of(np.ones(3), np.ones(3), np.zeros(3, bool))
    >>> np.sort(draw_buffers(three, 3, "dedup", 2, np.random.default_rng(0)), axis=1)
    array([[0, 1, 2],
           [0, 1, 2]])
    """
    if buffer != "dedup":
        return rng.choice(groups.many.size, (draws, size), p=groups.shares * groups.many)
    return _draw_subsets(groups, size, draws, rng)


def _draw_subsets(groups: Groups, size: int, draws: int, rng: np.random.Generator) -> Ints:
    if size == 0:
        return np.zeros((draws, 0), np.int64)
    log_weight = subsets(np.log(groups.shares), size, groups.many).log_weight
    if math.lgamma(size + 1) + log_weight > math.log(OFTEN_ENOUGH):
        return _draw_until_distinct(groups, size, draws, rng)
    return _draw_group_by_group(groups, size, draws, rng)


def _draw_until_distinct(groups: Groups, size: int, draws: int, rng: np.random.Generator) -> Ints:
    """Reject draws in which a client has two slots; the rest are distributed like a subset."""
    found, missing = [], draws
    while missing > 0:
        group = draw_buffers(groups, size, "window", 2 * missing, rng)
        member = np.floor(rng.random(group.shape) * groups.many[group]).astype(np.int64)
        first = np.cumsum(groups.many) - groups.many
        client = np.sort(first[group] + member, axis=1)
        distinct = (client[:, 1:] != client[:, :-1]).all(1)
        found.append(group[distinct])
        missing -= int(distinct.sum())
    return np.concatenate(found)[:draws]


def _draw_group_by_group(groups: Groups, size: int, draws: int, rng: np.random.Generator) -> Ints:
    """Draw the number of slots per group, given the slots left for it and all later groups."""
    coins, after = _coins(groups, size)
    left = np.full(draws, size)
    out, filled = np.zeros((draws, size), np.int64), np.zeros(draws, np.int64)
    for group, coin in enumerate(coins):
        dice = rng.random(draws)
        taken = np.zeros(draws, np.int64)
        spent = np.zeros(draws)
        open_ = left > 0
        for k in range(coin.size - 1):
            # P(k of this group | left) = coin[k] · after[left − k] / after_with_this_group[left]
            rest = left - k
            chance = np.where(rest >= 0, coin[k] * after[group + 1][np.maximum(rest, 0)], 0.0)
            spent += chance / after[group][left]
            more = open_ & (dice >= spent) & (rest > 0)
            if not more.any():
                break
            taken[more] = k + 1
        for k in range(int(taken.max())):
            rows = np.flatnonzero(taken > k)
            out[rows, filled[rows]] = group
            filled[rows] += 1
        left -= taken
    return out


def _coins(groups: Groups, size: int) -> tuple[list[Floats], list[Floats]]:
    """Return the distribution of the number of heads in each group, and from each group on."""
    clients = int(groups.many.sum())
    if size == clients:
        q = np.ones(groups.many.size)
    else:
        log_shares = np.log(groups.shares)
        q = heads(log_shares + coin_scale(log_shares, size, groups.many))
    coins = list(binomial_pmfs(q, size, groups.many).T)
    nothing = np.zeros(size + 1)
    nothing[0] = 1.0
    after = [nothing]
    for coin in reversed(coins):
        after.append(convolve(after[-1], coin, size))
    return coins, after[::-1]
