"""Buffer presence: the probability that a client, or any client of a group, is in the buffer.

Arrivals are memoryless. For a window of the last K arrivals and for blocks of K arrivals presence
is elementary. A buffer with one slot per client that evicts by time of first insertion is a FIFO
cache, and its contents have the distribution P(B) ∝ Π_{i ∈ B} o_i over all K-subsets, where
o_i = p_i is the client's share of arrivals. The same distribution with other odds gives
expectations of functions of the buffer (see `influence`).

Odds may be scaled freely. If they are scaled so that independent coins with these odds show K heads
on average, the distribution is that of the coins given K heads. The number of heads is
Poisson-binomial, and K is near its centre, so nothing overflows or underflows, however unequal the
odds.

`Groups` merges clients with similar rates and scores, so that a million clients are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.auditing.methods import REPLAY, Buffer
from fedraw.core.rarity import rarest
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput
from fedraw.strategies.replay import Target

# Beyond this many steps the exact distribution takes seconds, and the mean field's error is < 1e-5.
EXACT_UP_TO = 3 * 10**8
# A probability below this changes no digit of a sum.
NEGLIGIBLE = 1e-40
# Up to this many clients each client is its own group, and nothing is approximated.
MOST_GROUPS = 4096
# Bins per axis, of equal logarithmic width and again of equal numbers of clients. The error of
# binning is of second order.
BINS = 24
FEW_BINS = 10  # for quantities that are computed many times
SLOTS = 50  # this many of the rarest clients stay ungrouped, because replay treats each separately


def arrival_shares(seconds: npt.ArrayLike) -> Floats:
    """Return each client's probability of arriving next: its rate 1/s_i over the sum of rates.

    >>> arrival_shares([1.0, 1.0, 2.0])
    array([0.4, 0.4, 0.2])
    """
    rate = 1 / np.asarray(seconds, np.float64)
    return np.asarray(rate / rate.sum(), np.float64)


def presence(
    shares: Floats,
    size: int,
    buffer: Buffer,
    many: Ints | None = None,
    kept: Ints | None = None,
) -> Floats:
    """Return the probability that each client has at least one slot.

    `many` is the number of clients with each share (one by default). `kept` are the positions of
    the clients whose last update always stays in the buffer.

    >>> presence(np.array([0.5, 0.25, 0.25]), 2, "window")
    array([0.75  , 0.4375, 0.4375])
    >>> presence(np.array([0.5, 0.25, 0.25]), 2, "dedup").round(12)
    array([0.8, 0.6, 0.6])
    """
    if buffer == "all":
        return np.ones(shares.size)
    if buffer != "dedup":
        with np.errstate(divide="ignore"):  # a single client has every slot
            found = np.asarray(-np.expm1(size * np.log1p(-shares)), np.float64)
        found[[] if kept is None else kept] = 1.0
        return found
    check_fits(size, shares, many)
    if shares.size * size > EXACT_UP_TO:
        return mean_field_presence(np.log(shares), size, many)
    return subsets(np.log(shares), size, many).presence


def group_presence(
    shares: Floats,
    group: npt.NDArray[np.bool_],
    size: int,
    buffer: Buffer,
    many: Ints | None = None,
    kept: Ints | None = None,
) -> float:
    """Return the probability that at least one client of the group has a slot.

    >>> group_presence(np.array([0.5, 0.25, 0.25]), np.array([False, True, True]), 2, "dedup")
    1.0
    """
    if buffer == "all" or (kept is not None and group[kept].any()):
        return 1.0
    if buffer != "dedup":
        counts = np.ones(shares.size) if many is None else many
        share = min(float((shares * counts)[group].sum()), 1.0)
        return 1.0 if share == 1 else float(-np.expm1(size * np.log1p(-share)))
    check_fits(size, shares, many)
    return float(-np.expm1(log_chance_of_none(np.log(shares), group, size, many)))


def check_fits(size: int, shares: Floats, many: Ints | None = None) -> None:
    """Refuse a deduplicated buffer that is larger than the federation."""
    clients = shares.size if many is None else int(many.sum())
    if not 1 <= size <= clients:
        raise BadInput(
            f"a buffer of {size} with one slot per client never fills with {clients} clients; "
            f"give a size from 1 to {clients}"
        )


@dataclass(frozen=True, eq=False)
class Subsets:
    """The distribution of a random K-subset; groups of `many` clients share the same odds."""

    presence: Floats  # probability that one given client of each group is in the subset
    log_weight: float  # log of Σ_B Π o_i, the elementary symmetric polynomial e_K(o)


def subsets(log_odds: Floats, size: int, many: Ints | None = None) -> Subsets:
    """Return the exact distribution of a random subset of `size` clients.

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
    coins = _HeadCounts(q, counts, size)
    log_tails = -(counts * np.logaddexp(0.0, log_odds + log_scale)).sum()
    log_weight = np.log(coins.total[size]) - size * log_scale - log_tails
    return Subsets(np.minimum(q * coins.without_one() / coins.total[size], 1.0), float(log_weight))


def mean_field_presence(log_odds: Floats, size: int, many: Ints | None = None) -> Floats:
    """Return presence with K slots on average, not exactly: p T / (1 + p T), which sums to K."""
    clients = log_odds.size if many is None else int(many.sum())
    if size == clients:
        return np.ones(log_odds.size)
    return heads(log_odds + coin_scale(log_odds, size, many))


def log_chance_of_none(
    log_odds: Floats, group: npt.NDArray[np.bool_], size: int, many: Ints | None = None
) -> float:
    """Return log P(no client of the group is in the subset); -inf if that is impossible."""
    counts = np.ones(log_odds.size, np.int64) if many is None else many
    if counts[~group].sum() < size:
        return -np.inf
    without = subsets(log_odds[~group], size, counts[~group])
    return min(without.log_weight - subsets(log_odds, size, many).log_weight, 0.0)


def coin_scale(log_odds: Floats, size: int, many: Ints | None = None) -> float:
    """Solve Σ o T / (1 + o T) = K for log T, by Newton steps in a shrinking bracket."""
    counts = 1.0 if many is None else many
    clients = log_odds.size if many is None else int(many.sum())
    middle = np.log(size / (clients - size))
    low, high = float(middle - log_odds.max()), float(middle - log_odds.min())
    # Exact if all odds are tiny, and a good start otherwise.
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
    """Return the probability of heads from log odds, without overflow at either end."""
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds > 0, 1.0, small) / (1 + small), np.float64)


class _HeadCounts:
    """The distribution of the number of heads, among all coins and among all but one."""

    def __init__(self, q: Floats, counts: Ints, size: int) -> None:
        self._q, self._size = q, size
        # At most 2 K coins have factors that cannot be divided out without losing digits.
        self._quick = q > 0.5
        slow = ~self._quick
        self._coins = np.repeat(q[self._quick], counts[self._quick])
        self._first = np.cumsum(counts[self._quick]) - counts[self._quick]
        self.total = poisson_binomial(q[slow], size, counts[slow])
        self._before = [self.total]
        for coin in self._coins:
            self.total = convolve(self.total, np.array([1 - coin, coin]), size)
            self._before.append(self.total)

    def without_one(self) -> Floats:
        """Return P(K − 1 heads) if one coin of each group is left out."""
        out = np.empty(self._q.size)
        out[~self._quick] = self._divided(self._q[~self._quick])
        out[self._quick] = self._left_out()
        return out

    def _divided(self, q: Floats) -> Floats:
        """Divide out one factor (1 − q + q x); errors shrink by q / (1 − q) ≤ 1 per term."""
        term = np.zeros(q.size)
        for k in range(self._size):
            term = (self.total[k] - q * term) / (1 - q)
        return term

    def _left_out(self) -> Floats:
        """Multiply all factors before and after each coin, without any division."""
        after, wanted = np.ones(1), np.empty(self._coins.size)
        for j in range(self._coins.size - 1, -1, -1):
            before = self._before[j]
            k = np.arange(min(after.size, self._size))
            wanted[j] = after[k] @ before[self._size - 1 - k]
            after = convolve(after, np.array([1 - self._coins[j], self._coins[j]]), self._size)
        return np.asarray(wanted[self._first], np.float64)


def poisson_binomial(q: Floats, top: int, many: Ints | None = None) -> Floats:
    """Return P(0), …, P(`top`) heads if coin j, of bias q[j], is thrown `many[j]` times.

    The generating polynomials are multiplied pair by pair, all pairs of a level at once, and cut
    off above `top`: O(n · top), and every term is positive, so nothing cancels.

    >>> poisson_binomial(np.array([0.5, 0.5, 1.0]), 2)
    array([0.  , 0.25, 0.5 ])
    """
    level = _trimmed(binomial_pmfs(q, top, many))
    while level.shape[1] > 1:
        odd = level[:, -1:] if level.shape[1] % 2 else None
        level = _multiply(level[:, 0:-1:2], level[:, 1::2], top)
        if odd is not None:
            padding = np.zeros((level.shape[0] - odd.shape[0], 1))
            level = np.hstack([level, np.vstack([odd, padding])])
        level = _trimmed(level)
    out = np.zeros(top + 1)
    out[: level.shape[0]] = level[:, 0] if level.shape[1] else [1.0] + [0.0] * (len(level) - 1)
    return out


def convolve(a: Floats, b: Floats, top: int) -> Floats:
    """Return the distribution of the sum of two independent counts, cut off above `top`."""
    return np.convolve(a, b)[: top + 1]


def binomial_pmfs(q: Floats, top: int, many: Ints | None = None) -> Floats:
    """Return the binomial distribution of each coin: one column per coin, one row per count."""
    if many is None or many.max(initial=1) == 1:
        return np.vstack([1 - q, q])[: top + 1]
    degree = min(int(many.max()), top)
    leaves = np.empty((degree + 1, q.size))
    with np.errstate(divide="ignore", invalid="ignore"):
        # (1 − q)^m may underflow although the probabilities near the mean do not.
        log_odds, term = np.log(q) - np.log1p(-q), many * np.log1p(-q)
        for k in range(degree + 1):
            leaves[k] = np.where(k <= many, np.exp(term), 0.0)
            term = term + np.log(np.maximum(many - k, 0)) - np.log(k + 1) + log_odds
    always = q == 1  # their odds are infinite
    leaves[:, always] = np.arange(degree + 1)[:, None] == many[always]
    return leaves


def _trimmed(level: Floats) -> Floats:
    """Drop the last rows if they are negligible: a large group is rarely far from its mean."""
    rows = np.flatnonzero((level > NEGLIGIBLE).any(axis=1))
    return level[: rows[-1] + 1] if rows.size else level


def _multiply(a: Floats, b: Floats, top: int) -> Floats:
    degree = min(a.shape[0] + b.shape[0] - 2, top)
    product = np.zeros((degree + 1, a.shape[1]))
    for k in range(a.shape[0]):
        rows = min(b.shape[0], degree + 1 - k)
        product[k : k + rows] += a[k] * b[:rows]
    return product


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of clients with (nearly) equal mean time and rarity score.

    A group's rate is the mean of its clients' rates, and its score the mean of their scores, so
    that arrivals and the sum of scores are those of the federation.
    """

    rate: Floats
    score: Floats
    many: Ints
    of_client: Ints  # the group of each client
    rarest: Ints  # groups of the clients far above the median score, one client each, rarest first
    samples: Floats | None = None  # the mean number of samples of its clients; None: all equal

    @classmethod
    def of(
        cls,
        rate: Floats,
        score: Floats,
        flag: npt.NDArray[np.bool_],
        bins: int = BINS,
        slots: int = SLOTS,
        samples: npt.NDArray[Any] | None = None,
    ) -> Groups:
        """Group the clients; clients with and without the flag are never in the same group.

        The `slots` rarest clients are groups of one. Without `samples`, all clients have the same
        number.

        >>> groups = Groups.of(np.ones(5000), np.ones(5000), np.arange(5000) < 2)
        >>> groups.many
        array([4998,    2])
        """
        if rate.size <= MOST_GROUPS:
            return cls.singly(rate, score, samples)
        sizes = None if samples is None else samples.astype(np.float64)
        key = (_bins(rate, bins) * 2 * bins + _bins(score, bins)) * 2 + flag
        first = replayed_clients(score, slots)
        key[first] = 8 * bins * bins + np.arange(first.size)
        counts = np.bincount(key)
        held = np.flatnonzero(counts)
        many, of_client = counts[held], (np.cumsum(counts > 0) - 1)[key]
        mean_rate = np.bincount(of_client, rate, held.size) / many
        mean_score = np.bincount(of_client, score, held.size) / many
        if sizes is not None:
            sizes = np.bincount(of_client, sizes, held.size) / many
        return cls(mean_rate, mean_score, many, of_client, of_client[first], sizes)

    @classmethod
    def singly(cls, rate: Floats, score: Floats, samples: npt.NDArray[Any] | None = None) -> Groups:
        """Return groups of one client each."""
        sizes = None if samples is None else samples.astype(np.float64)
        alone = np.ones(rate.size, np.int64), np.arange(rate.size)
        return cls(rate, score, *alone, replayed_clients(score), sizes)

    @property
    def shares(self) -> Floats:
        """The share of arrivals of one client in each group."""
        return np.asarray(self.rate / (self.rate * self.many).sum(), np.float64)

    def wanted(self, target: Target) -> Floats:
        """Return the target weight of one client in each group under replay by debt."""
        samples = np.ones(self.many.size) if self.samples is None else self.samples
        return wanted_shares(self.score, samples, target, self.many)

    def members(self, flag: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return a mask of the groups that contain a client with the flag."""
        inside = np.zeros(self.many.size, np.bool_)
        inside[self.of_client[flag]] = True
        return inside


def wanted_shares(
    scores: Floats, samples: npt.NDArray[Any], target: Target, many: Ints | None = None
) -> Floats:
    """Return the target weight of one client in each group; it sums to one over all clients.

    >>> wanted_shares(np.array([3.0, 1.0]), np.array([10, 10]), "mix")
    array([0.625, 0.375])
    """
    counts = 1 if many is None else many
    rarity = scores / (scores * counts).sum()
    by_size = samples / (samples * counts).sum()
    parts = {"rarity": rarity, "samples": by_size, "mix": (rarity + by_size) / 2}
    return np.asarray(parts[target], np.float64)


def replayed_clients(scores: Floats, slots: int | None = None) -> Ints:
    """Return the positions of the clients whose last update replay keeps, the rarest first."""
    return rarest(scores, slots, REPLAY.threshold)


def _bins(values: Floats, bins: int) -> Ints:
    """Bin by width and by quantile, so that an outlier does not put all others in one bin."""
    logs = np.log(values)
    if np.ptp(logs) < 1e-9:
        return np.zeros(values.size, np.int64)
    widths = np.linspace(logs.min(), logs.max(), bins + 1)
    edges = np.union1d(widths[1:-1], np.quantile(logs, np.arange(1, bins) / bins))
    return np.asarray(np.searchsorted(edges, logs, side="right"), np.int64)
