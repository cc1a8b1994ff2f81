"""Influence under a cap, from buffers drawn independently from the stationary law.

A cap makes a weight depend on all scores in the buffer at once, which no product form survives.
Presence is still exact; only the mean weight of a client that is present is sampled. Given that a
client is in a deduplicated buffer, the others are a (K − 1)-subset without it, of the same law.
The weight of a client that is in most buffers is averaged over those buffers instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.auditing.groups import Groups
from fedraw.auditing.methods import Buffer
from fedraw.auditing.presence import binomial_pmfs, coin_scale, convolve, heads, presence, subsets
from fedraw.core.types import Floats, Ints
from fedraw.core.weighting import Cap

WORK = 4 * 10**6  # the most slots to weigh: draws x scores x slots
MOST_DRAWS, FEWEST_DRAWS = 2000, 200
MOST_SCORES = 48  # a weight is smooth in the score and interpolated between these
# Drawing until all slots differ is cheap if at least this share of the draws do.
OFTEN_ENOUGH = 0.02


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean and its standard error."""

    mean: Floats
    error: Floats


def capped_influence(
    groups: Groups, size: int, buffer: Buffer, cap: Cap, cap_at: float, seed: int = 0
) -> Estimate:
    """The influence of one client in each group under rarity weights, with or without a cap."""
    rng = np.random.default_rng(seed)
    scores = _few_scores(groups.score)
    draws = int(np.clip(WORK // (scores.size * size), FEWEST_DRAWS, MOST_DRAWS))
    others = draw_buffers(groups, size - 1, buffer, draws, rng)
    weight = _weight_beside(scores, groups.score[others], cap, cap_at)
    if buffer == "dedup":
        chance = presence(groups.shares, size, "dedup", groups.many)
        mean, error = _without_itself(groups, scores, weight, others)
        crowded = chance > 0.5  # few draws of the others may lack these
        if crowded.any():
            held = draw_buffers(groups, size, "dedup", draws, rng)
            own = weights_of_rows(groups.score[held], cap, cap_at)
            mean[crowded], error[crowded] = _in_its_slots(crowded, held, own)
    else:
        chance = size * groups.shares
        mean = np.interp(groups.score, scores, weight.mean(0))
        error = np.interp(groups.score, scores, weight.std(0)) / np.sqrt(draws)
    return Estimate(chance * mean, chance * error)


def weights_of_rows(scores: Floats, cap: Cap, cap_at: float) -> Floats:
    """`core.weighting.weights` for every row at once.

    >>> weights_of_rows(np.array([[8.0, 1, 1]]), "water-filling", 0.5)
    array([[0.5 , 0.25, 0.25]])
    """
    weight = np.asarray(scores / scores.sum(-1, keepdims=True), np.float64)
    if cap == "naive":
        lowered = np.minimum(weight, cap_at)
        return np.asarray(lowered / lowered.sum(-1, keepdims=True), np.float64)
    if cap == "water-filling":
        pinned = np.zeros(weight.shape, np.bool_)
        while (above := (weight > cap_at * (1 + 1e-12)) & ~pinned).any():
            pinned |= above
            free = np.where(pinned, 0.0, scores)
            room = 1 - cap_at * pinned.sum(-1, keepdims=True)
            level = room / np.maximum(free.sum(-1, keepdims=True), np.finfo(float).tiny)
            weight = np.where(pinned, cap_at, free * level)
    return weight


def _few_scores(score: Floats) -> Floats:
    distinct = np.unique(score)
    if distinct.size <= MOST_SCORES:
        return distinct
    return np.geomspace(distinct[0], distinct[-1], MOST_SCORES)


def _weight_beside(scores: Floats, others: Floats, cap: Cap, cap_at: float) -> Floats:
    """The weight of a slot of each score (columns) beside each draw of the others (rows)."""
    draws, rest = others.shape
    rows = np.empty((draws, scores.size, rest + 1))
    rows[..., 1:] = others[:, None, :]
    rows[..., 0] = scores
    return weights_of_rows(rows, cap, cap_at)[..., 0]


def _without_itself(
    groups: Groups, scores: Floats, weight: Floats, others: Ints
) -> tuple[Floats, Floats]:
    """The mean weight of each group over the draws that do not hold the client itself."""
    draws, slots = others.shape
    base = weight.mean(0)
    weight = weight - base  # so that a constant weight has exactly no error
    left, part = _neighbours(scores, groups.score)
    following = np.minimum(np.arange(scores.size) + 1, scores.size - 1)
    right = following[left]
    draw, group = np.repeat(np.arange(draws), slots), others.ravel()  # one entry per slot
    own = (1 - part[group]) * weight[draw, left[group]] + part[group] * weight[draw, right[group]]
    # A draw that holds one of `many` similar clients holds each with this probability.
    chance = 1 / groups.many[group]
    squares, products = (weight**2).sum(0), (weight * weight[:, following]).sum(0)
    square = (1 - part) ** 2 * squares[left] + part**2 * squares[right]
    square += 2 * part * (1 - part) * products[left]
    every = groups.many.size
    without = draws - np.bincount(group, chance, every)
    without = np.where(without > 0.5, without, np.inf)  # present in every draw: no estimate here
    mean = -np.bincount(group, chance * own, every) / without
    square = (square - np.bincount(group, chance * own**2, every)) / without
    error = np.sqrt(np.maximum(square - mean**2, 0) / without)
    return (1 - part) * base[left] + part * base[right] + mean, error


def _neighbours(scores: Floats, wanted: Floats) -> tuple[Ints, Floats]:
    """The last score not above each wanted one, and the fraction of the way to the next."""
    left = np.clip(np.searchsorted(scores, wanted, side="right") - 1, 0, scores.size - 1)
    right = np.minimum(left + 1, scores.size - 1)
    width = np.where(right > left, scores[right] - scores[left], 1.0)
    return left, np.clip((wanted - scores[left]) / width, 0, 1)


def _in_its_slots(
    wanted: npt.NDArray[np.bool_], held: Ints, weight: Floats
) -> tuple[Floats, Floats]:
    """The mean weight of the slots that each wanted group has in the draws."""
    column, columns = np.cumsum(wanted) - 1, int(wanted.sum())
    draw, slot = np.nonzero(wanted[held])
    cell, cells = draw * columns + column[held[draw, slot]], len(held) * columns
    count = np.bincount(cell, minlength=cells).reshape(-1, columns)
    total = np.bincount(cell, weight[draw, slot], cells).reshape(-1, columns)
    slots = np.maximum(count.sum(0), 1)
    mean = total.sum(0) / slots
    return mean, np.sqrt(((total - count * mean) ** 2).sum(0)) / slots


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
    """Reject draws in which a client has two slots; the rest have the law of a subset."""
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
    """The law of the number of heads in each group, and in all groups from each one on."""
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
