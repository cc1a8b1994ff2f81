"""Staleness: the number of events between the hand-out of a model and the update in reply.

Under memoryless arrivals a client's gaps are geometric with its share p of the arrivals. The first
gap starts at event 0, and a gap that is open when the run ends is not counted. `eventlog.metrics`
measures the same as RareMeanStale and RareMaxStale.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedraw.auditing.methods import Buffer
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput

POINTS = 256  # a smooth sum over more terms is evaluated at this many points
CERTAIN, NEVER = 40.0, 1e-9  # with this expected number of long gaps, one is certain, or impossible
PINNED = 16.0  # above, the alternating sum loses its digits, and the probability is below 1e-7
COLUMNS = 4096  # clients evaluated at a time


def client_staleness(shares: Floats) -> Floats:
    """Return the mean gap of each client, 1/p.

    >>> client_staleness(np.array([0.5, 0.25, 0.25]))
    array([2., 4., 4.])
    """
    return np.asarray(1 / shares, np.float64)


def mean_staleness(
    shares: Floats,
    group: npt.NDArray[np.bool_],
    events: int | None = None,
    many: Ints | None = None,
) -> float:
    """Return the mean over a group's arrivals in a run of `events`; without `events`, |G| / p_G.

    A finite run cuts off the gap that is open at its end, so its mean is slightly smaller. The
    result is exact, given that the group has an arrival. `many` is the number of clients with each
    share.

    >>> half = np.array([True, False, False])
    >>> mean_staleness(np.array([0.5, 0.25, 0.25]), half)
    2.0
    >>> mean_staleness(np.array([0.5, 0.25, 0.25]), half, events=1)
    1.0
    """
    p, counts = _members(shares, group, many)
    total = min(float((p * counts).sum()), 1.0)
    if events is None:
        return float(counts.sum()) / total
    _check_events(events)
    arrivals, chance = _arrivals(events, total)
    # Of n arrivals of the group, the k-th comes at event k (E + 1) / (n + 1) on average, and client
    # i's last is the k-th with probability q (1 − q)^(n − k). Its gaps add up to that event.
    last = np.zeros(arrivals.size)
    for q, m in zip(*_chunks(p / total, counts), strict=True):
        absent = np.exp(np.outer(arrivals, np.log1p(-np.minimum(q, 1 - 1e-16))))
        last += ((arrivals[:, None] - (1 - q) * (1 - absent) / q) * m).sum(1)
    mean = last * (events + 1) / (arrivals * (arrivals + 1))
    return float((chance * mean).sum() / chance.sum())


def worst_staleness(
    shares: Floats, group: npt.NDArray[np.bool_], events: int, many: Ints | None = None
) -> float:
    """Return the expected largest gap among a group's arrivals in a run of `events`.

    It is Σ_g P(some gap is longer than g), given that the group has an arrival. For one client this
    is exact up to rounding; several clients are treated as independent, with an error of order p.

    >>> round(worst_staleness(np.array([0.5, 0.5]), np.array([True, False]), 2), 12)
    1.333333333333
    """
    p, counts = _members(shares, group, many)
    _check_events(events)
    first = _last_above(CERTAIN, p, counts, events)
    last = min(_last_above(NEVER, p, counts, events) + 1, events - 1)
    gaps = np.arange(first, last + 1.0)
    sampled = gaps.size > 2 * POINTS
    if sampled:
        gaps = np.linspace(first, last, POINTS + 1)
    longer = 1 - _no_longer(gaps, p, counts, events)
    if sampled:
        # Simpson's rule plus half of both ends, as in the Euler-Maclaurin formula.
        weight = np.ones(POINTS + 1)
        weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0
        step = (last - first) / POINTS
        total = step / 3 * float(weight @ longer) + 0.5 * float(longer[0] + longer[-1])
    else:
        total = float(longer.sum())
    share = min(float((p * counts).sum()), 1 - 1e-16)
    anyone = -math.expm1(events * math.log1p(-share))
    return (first + total) / anyone


def in_versions(staleness: float, buffer: Buffer, size: int) -> float:
    """Convert staleness in events to staleness in versions, once the first buffer has filled.

    Every event between hand-out and reply makes a version; with blocks, every K-th event does.

    >>> in_versions(61, "dedup", 10), in_versions(61, "blocks", 10)
    (60.0, 6.0)
    """
    return (staleness - 1) / (size if buffer == "blocks" else 1)


def _members(
    shares: Floats, group: npt.NDArray[np.bool_], many: Ints | None
) -> tuple[Floats, Floats]:
    if not group.any():
        raise BadInput("the group has no clients, so it has no staleness; name at least one client")
    counts = np.ones(shares.size) if many is None else many.astype(np.float64)
    return shares[group], counts[group]


def _check_events(events: int) -> None:
    if events < 1:
        raise BadInput(f"events = {events} must be at least 1")


def _chunks(p: Floats, counts: Floats) -> tuple[list[Floats], list[Floats]]:
    cuts = range(COLUMNS, p.size, COLUMNS)
    return np.split(p, cuts), np.split(counts, cuts)


def _arrivals(events: int, share: float) -> tuple[Floats, Floats]:
    """Return numbers of arrivals of the group, from 1 on, and their binomial probabilities."""
    mean, spread = events * share, math.sqrt(events * share * (1 - share))
    low = max(1, math.floor(mean - 9 * spread - 9))
    high = min(events, math.ceil(mean + 9 * spread + 30))
    n = np.arange(low, high + 1, max(1, (high - low) // (2 * POINTS)))
    if share == 1:
        return np.array([float(events)]), np.ones(1)
    logs = [
        math.lgamma(events + 1) - math.lgamma(k + 1) - math.lgamma(events - k + 1)
        for k in n.tolist()
    ]
    log_chance = logs + n * math.log(share) + (events - n) * math.log1p(-share)
    return n.astype(np.float64), np.exp(log_chance - log_chance.max())


def _expected_longer(gap: int, p: Floats, counts: Floats, events: int) -> float:
    """Return the expected number of gaps longer than g.

    Each ends at one of E − g events, after g events without the client.
    """
    return (events - gap) * float((counts * np.exp(_log_ending(np.array([gap]), p)[0])).sum())


def _log_ending(gaps: npt.NDArray[np.generic], p: Floats) -> Floats:
    return np.asarray(np.log(p) + np.outer(gaps, np.log1p(-np.minimum(p, 1 - 1e-16))), np.float64)


def _last_above(expected: float, p: Floats, counts: Floats, events: int) -> int:
    """Return the last g with more than `expected` longer gaps expected; 0 if there is none."""
    low, high = 0, events
    while high - low > 1:
        middle = (low + high) // 2
        above = _expected_longer(middle, p, counts, events) > expected
        low, high = (middle, high) if above else (low, middle)
    return low


def _no_longer(gaps: Floats, p: Floats, counts: Floats, events: int) -> Floats:
    """Return P(no client has a gap longer than g), for each g."""
    log_chance = np.zeros(gaps.size)
    for own, m in zip(*_chunks(p, counts), strict=True):
        log_chance += (m * _log_no_longer(gaps, own, events)).sum(1)
    return np.exp(log_chance)


def _log_no_longer(gaps: Floats, p: Floats, events: int) -> Floats:
    """Return log Σ_j (−1)^j C(E − j g, j) x^j, with x = p (1 − p)^g.

    This is log P(one client has no gap longer than g), by inclusion-exclusion over j long gaps: j
    disjoint blocks of g events without the client and one with it. The first two terms are those of
    a Poisson number of long gaps.
    """
    log_x = _log_ending(gaps, p)
    expected = (events - gaps)[:, None] * np.exp(log_x)
    sure = expected > PINNED
    log_x = np.where(sure, -np.inf, log_x)
    chance = np.ones(log_x.shape)
    for j in range(1, events + 1):
        log_ways = _log_ways(events - j * gaps, j)
        term = np.exp(log_ways[:, None] + j * log_x)
        chance += -term if j % 2 else term
        if term.max() < 1e-14:
            break
    return np.where(sure, -1e3, np.log(np.clip(chance, 1e-300, 1.0)))


def _log_ways(places: Floats, chosen: int) -> Floats:
    """Return log C(places, chosen); −inf if there are too few places."""
    enough = places > chosen - 1
    log_ways = np.zeros(places.size)
    for i in range(chosen):
        log_ways += np.log(np.where(enough, places - i, 1.0) / (i + 1))
    return np.where(enough, log_ways, -np.inf)
