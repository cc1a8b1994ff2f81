"""Which clients share a deduplicated buffer: the law P(B) ∝ Π_{i ∈ B} o_i over all K-subsets.

A buffer with one slot per client that evicts by time of first insertion is a FIFO cache, and under
memoryless arrivals its contents have this law with o_i = p_i, the client's share of arrivals. The
same law with other odds gives expectations of functions of the buffer (see `influence`).

Odds may be scaled freely. Scaled so that independent coins with these odds fall heads K times on
average, they make the law that of the coins given that K fell heads: a Poisson-binomial one, whose
middle is nowhere near an overflow, however unequal the odds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.analysis.poisson_binomial import convolve, pmf
from fedraw.core.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Subsets:
    """The law of a random K-subset; groups of `many` clients share the same odds."""

    presence: Floats  # chance that one given client of each group is in the subset
    log_weight: float  # log of Σ_B Π o_i, the elementary symmetric polynomial e_K(o)


def subsets(log_odds: Floats, size: int, many: Ints | None = None) -> Subsets:
    """The law of `size` of all clients, exactly.

    >>> subsets(np.log([1.0, 1.0, 2.0]), 2).presence.round(12)
    array([0.6, 0.6, 0.8])
    """
    counts = np.ones(log_odds.size, np.int64) if many is None else many
    if size == counts.sum():
        return Subsets(np.ones(log_odds.size), float((counts * log_odds).sum()))
    if size == 0:
        return Subsets(np.zeros(log_odds.size), 0.0)
    log_scale = coin_scale(log_odds, size, many)
    q = heads(log_odds + log_scale)
    law = _Law(q, counts, size)
    log_tails = -(counts * np.logaddexp(0.0, log_odds + log_scale)).sum()
    log_weight = np.log(law.total[size]) - size * log_scale - log_tails
    return Subsets(np.minimum(q * law.without_one() / law.total[size], 1.0), float(log_weight))


def mean_field_presence(log_odds: Floats, size: int, many: Ints | None = None) -> Floats:
    """The coins' own chances, K on average instead of exactly: p T / (1 + p T) with Σ = K."""
    clients = log_odds.size if many is None else int(many.sum())
    if size == clients:
        return np.ones(log_odds.size)
    return heads(log_odds + coin_scale(log_odds, size, many))


def log_chance_of_none(
    log_odds: Floats, group: npt.NDArray[np.bool_], size: int, many: Ints | None = None
) -> float:
    """Log of the chance that no client of the group is in the subset; -inf: it cannot happen."""
    counts = np.ones(log_odds.size, np.int64) if many is None else many
    if counts[~group].sum() < size:
        return -np.inf
    without = subsets(log_odds[~group], size, counts[~group])
    return min(without.log_weight - subsets(log_odds, size, many).log_weight, 0.0)


def coin_scale(log_odds: Floats, size: int, many: Ints | None = None) -> float:
    """Log of the factor T with Σ o T / (1 + o T) = K: Newton's steps inside a shrinking bracket."""
    counts = 1.0 if many is None else many
    clients = log_odds.size if many is None else int(many.sum())
    middle = np.log(size / (clients - size))
    low, high = float(middle - log_odds.max()), float(middle - log_odds.min())
    # As if no client could fall heads twice: near, where each seldom does.
    top = log_odds.max()
    sparse = np.log(size / (counts * np.exp(log_odds - top)).sum()) - top
    x = float(np.clip(sparse, low, high))
    for _ in range(200):
        q = heads(log_odds + x)
        excess = float((counts * q).sum()) - size
        slope = float((counts * q * (1 - q)).sum())
        low, high = (low, x) if excess > 0 else (x, high)
        step = x - excess / slope if slope > 0 else np.inf
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - x) < 1e-13 * max(1.0, abs(x)):
            break
        x = following
    return x


def heads(log_odds: Floats) -> Floats:
    """A coin's chance from the log of its odds, without overflow at either end."""
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds > 0, 1.0, small) / (1 + small), np.float64)


class _Law:
    """The number of heads: of all coins, and of all but one."""

    def __init__(self, q: Floats, counts: Ints, size: int) -> None:
        self._q, self._size = q, size
        # At most 2 K coins, whose factors one cannot divide out without losing digits.
        self._quick = q > 0.5
        slow = ~self._quick
        self._coins = np.repeat(q[self._quick], counts[self._quick])
        self._first = np.cumsum(counts[self._quick]) - counts[self._quick]
        self.total = pmf(q[slow], size, counts[slow])
        self._before = [self.total]
        for coin in self._coins:
            self.total = convolve(self.total, np.array([1 - coin, coin]), size)
            self._before.append(self.total)

    def without_one(self) -> Floats:
        """P(K − 1 heads without one coin of each group)."""
        out = np.empty(self._q.size)
        out[~self._quick] = self._divided(self._q[~self._quick])
        out[self._quick] = self._left_out()
        return out

    def _divided(self, q: Floats) -> Floats:
        """Undo one factor (1 − q + q x): errors shrink by q / (1 − q) ≤ 1 from term to term."""
        term = np.zeros(q.size)
        for k in range(self._size):
            term = (self.total[k] - q * term) / (1 - q)
        return term

    def _left_out(self) -> Floats:
        """Products of all before and all after a coin, without any division."""
        after, wanted = np.ones(1), np.empty(self._coins.size)
        for j in range(self._coins.size - 1, -1, -1):
            before = self._before[j]
            k = np.arange(min(after.size, self._size))
            wanted[j] = after[k] @ before[self._size - 1 - k]
            after = convolve(after, np.array([1 - self._coins[j], self._coins[j]]), self._size)
        return np.asarray(wanted[self._first], np.float64)
