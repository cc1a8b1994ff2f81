"""The expected number of aggregations in a run of E events with memoryless arrivals.

A deduplicated buffer aggregates at every event from the arrival of the K-th distinct client on: the
coupon collector's problem, stopped early. If events are the points of a Poisson process of rate
one, clients are independent, and the number of distinct ones by time t is Poisson-binomial with
probabilities 1 − e^(−p t). The mean number of events until the buffer is full is then exactly
∫ P(fewer than K by t) dt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedraw.auditing.methods import Buffer
from fedraw.auditing.presence import check_fits, poisson_binomial
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput

ALMOST_ONE = 1 - 2**-53
EARLY, LATE = 1e-10, 1e-14  # probabilities that the buffer is full before, or not full after
ACCURACY = 1e-9
NARROW = 3.0  # ratio of the variance of the filling time to its mean
MOST_POINTS = 1024


def expected_aggregations(
    shares: Floats, events: int, size: int, buffer: Buffer, many: Ints | None = None
) -> float:
    """Return the expected number of aggregations in `events` arrivals.

    The result is exact, except for an error of up to 0.2 for a deduplicated buffer that may not be
    full by the end. `many` is the number of clients with each share.

    >>> third = np.full(3, 1 / 3)
    >>> [expected_aggregations(third, 100, 10, kind) for kind in ("window", "blocks")]
    [91.0, 10.0]
    >>> round(expected_aggregations(third, 100, 2, "dedup"), 6)
    98.5
    """
    if events < 0 or size < 1:
        raise BadInput(
            f"a run of {events} events with a buffer of {size}: give at least 0 events and a "
            "buffer of at least 1"
        )
    if buffer == "window":
        return float(max(0, events - size + 1))
    if buffer == "blocks":
        return float(events // size)
    if events < size:
        check_fits(size, shares, many)
        return 0.0
    filling = _Filling.of(shares, size, many)
    if events - math.sqrt(events) >= filling.last:
        return events - filling.mean + 1
    # The Poisson spread is wider than a narrow distribution of the filling time, and narrower than
    # a wide one, so each case has its own approximation.
    narrow = filling.variance < NARROW * filling.mean
    found = _from_moments(filling, events) if narrow else _from_poisson(filling, events)
    return float(np.clip(found, 0, events - size + 1))


def events_to_fill(shares: Floats, size: int, many: Ints | None = None) -> float:
    """Return the mean number of events until `size` distinct clients have arrived.

    >>> round(events_to_fill(np.full(3, 1 / 3), 3), 6)  # 1 + 3/2 + 3
    5.5
    """
    return _Filling.of(shares, size, many).mean


@dataclass(frozen=True, eq=False)
class _Filling:
    """The time at which a buffer fills, in Poisson time: after `first` and before `last`."""

    shares: Floats
    size: int
    many: Ints | None
    first: float
    last: float

    @classmethod
    def of(cls, shares: Floats, size: int, many: Ints | None) -> _Filling:
        check_fits(size, shares, many)
        counts = np.ones(shares.size) if many is None else many.astype(np.float64)

        def seen(t: float) -> tuple[float, float]:
            missing = counts * np.exp(-shares * t)
            return float((counts - missing).sum()), float(missing.sum())

        def surely_not_full(t: float) -> bool:
            came, missing = seen(t)
            return came < size and _log_tail(size, came, missing) < math.log(EARLY)

        def surely_full(t: float) -> bool:
            came, missing = seen(t)
            return came > size - 1 and _log_tail(size - 1, came, missing) < math.log(LATE)

        end = 100 / float(shares.min()) * (1 + math.log(counts.sum()))
        first = _turn(lambda t: not surely_not_full(t), EARLY / 10, end)[0]
        return cls(shares, size, many, first, _turn(surely_full, first, end)[1])

    def not_full(self, t: float) -> float:
        came = np.minimum(-np.expm1(-self.shares * t), ALMOST_ONE)
        return min(float(poisson_binomial(came, self.size - 1, self.many).sum()), 1.0)

    @cached_property
    def mean(self) -> float:
        return self.first + _integral(self.not_full, self.first, self.last)

    @cached_property
    def variance(self) -> float:
        """The variance of the number of events: Poisson time minus waits."""
        square = self.first**2 + 2 * _integral(
            lambda t: t * self.not_full(t), self.first, self.last
        )
        return max(0.0, square - self.mean**2 - self.mean)

    def aggregations(self, t: float) -> float:
        """Return ∫_0^t P(full) + P(full by t), the mean for a Poisson number of events."""
        if t <= self.first:
            return 0.0
        if t >= self.last:
            return t - self.mean + 1
        full = _integral(lambda s: 1 - self.not_full(s), self.first, t)
        return full + 1 - self.not_full(t)


def _from_moments(filling: _Filling, events: int) -> float:
    """Approximate the events beyond K by a negative binomial with the right mean and variance.

    Terms are computed from the ratio of consecutive probabilities; the limit is Poisson.
    """
    extra = filling.mean - filling.size
    if extra < 1e-9:
        return events - filling.size + 1
    excess = max(filling.variance / extra - 1, 1e-12)
    late = np.arange(events - filling.size + 1)
    ratio = np.log((extra + late * excess) / ((late + 1) * (1 + excess)))
    log_chance = np.concatenate([[0.0], np.cumsum(ratio[:-1])])
    log_chance -= extra / excess * math.log1p(excess)
    return float((np.exp(log_chance) * (late.size - late)).sum())


def _from_poisson(filling: _Filling, events: int) -> float:
    """Return Ã(E) − (E/2) Ã″(E), the Poisson mean minus its curvature over the spread √E."""
    spread = math.sqrt(events)
    middle = filling.aggregations(events)
    around = filling.aggregations(events + spread) + filling.aggregations(events - spread)
    return 2 * middle - around / 2


def _log_tail(k: float, came: float, missing: float) -> float:
    """Return Chernoff's log bound on the tail at k, which is that of the binomial.

    It is −n KL(k/n ‖ mean/n), written with the mean number of missing clients, which may be tiny.
    """
    n = came + missing
    log_tail = 0.0
    for part, mean in ((k, came), (n - k, missing)):
        if part > 0:
            log_tail += part * math.log(mean / part) if mean > 0 else -math.inf
    return log_tail


def _turn(happened: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Bracket the time at which `happened` turns true, by bisection in log time."""
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if happened(middle) else (middle, high)
    return low, high


def _integral(f: Callable[[float], float], low: float, high: float) -> float:
    """Integrate by Clenshaw-Curtis quadrature in log t, doubling the points until convergence."""
    centre, half = math.log(low * high) / 2, math.log(high / low) / 2
    values: dict[float, float] = {}

    def at(x: float) -> float:
        if x not in values:
            t = math.exp(centre + half * x)
            values[x] = f(t) * t
        return values[x]

    points, before = 16, math.inf
    while True:
        # The points of a coarser rule are points of the finer one, with identical rounding.
        x = [math.cos(math.pi * (k / points)) for k in range(points + 1)]
        value = half * float(_weights(points) @ [at(node) for node in x])
        if abs(value - before) <= ACCURACY * abs(value) or points >= MOST_POINTS:
            return value
        points, before = 2 * points, value


def _weights(points: int) -> Floats:
    """Return the Clenshaw-Curtis weights at cos(π k / n) for even n."""
    j = np.arange(1, points // 2 + 1)
    b = np.where(j == points // 2, 1.0, 2.0) / (4 * j**2 - 1)
    angle = 2 * np.pi / points * np.outer(np.arange(points + 1), j)
    weight = 2 / points * (1 - np.cos(angle) @ b)
    weight[[0, -1]] /= 2
    return np.asarray(weight, np.float64)
