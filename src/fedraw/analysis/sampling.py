"""Independent buffers, drawn from the stationary law itself: no chain to wait for."""

from __future__ import annotations

import math

import numpy as np

from fedraw.analysis.groups import Groups
from fedraw.analysis.poisson_binomial import convolve, of_each
from fedraw.analysis.presence import Buffer
from fedraw.analysis.product_form import coin_scale, heads, subsets
from fedraw.core.types import Floats, Ints

# Drawing until all slots differ is cheap if one draw in so many does.
OFTEN_ENOUGH = 0.02


def draw_buffers(
    groups: Groups, size: int, buffer: Buffer, draws: int, rng: np.random.Generator
) -> Ints:
    """`draws` buffers of `size` slots: the group of the client in each slot.

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
    """Independent slots have the law of a subset, given that no client has two of them."""
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
    """How many of each group, given how many slots are left for it and all after it."""
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
    """The law of how many clients of each group fall heads, and of all groups from each one on."""
    clients = int(groups.many.sum())
    if size == clients:
        q = np.ones(groups.many.size)
    else:
        log_shares = np.log(groups.shares)
        q = heads(log_shares + coin_scale(log_shares, size, groups.many))
    coins = list(of_each(q, size, groups.many).T)
    nothing = np.zeros(size + 1)
    nothing[0] = 1.0
    after = [nothing]
    for coin in reversed(coins):
        after.append(convolve(after[-1], coin, size))
    return coins, after[::-1]
