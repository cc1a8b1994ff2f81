"""Influence under methods that compensate for how often clients arrive.

Arrivals are memoryless, client i sends the share p_i of them, and a step takes K arrivals. Each
function returns the influence of one client in each group of `many` clients with equal shares; it
sums to one over all clients. All formulas describe the long run, when every client has arrived.

    debt       replay by participation debt: clients have their target weights
    intervals  FedAU: the weight of an update is the number of steps between updates of its client
    corrected  FedStale: the same, and to the extent β equal weights for all clients
    staleness  FedStaleWeight: the weight of an update is the mean staleness of its client
    recent     ACED: equal weights for the clients of the last arrivals
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedraw.core.types import Floats, Ints
from fedraw.strategies.replay import NO_DEBT

STEP = 0.6  # in log u; the trapezoid rule's error is then 6e-7
SMALL, LARGE = 1e-3, 18.0  # u X at both ends: the integrand is flat below, zero above
# A geometric waiting time is almost never longer than this multiple of its mean.
LONGEST = 40.0
# The number of grid points at which the mean number of distinct clients is computed.
POINTS = 96


def nodes(least: float, most: float) -> Iterator[tuple[float, float]]:
    """Yield nodes u and their widths for 1/X = ∫ e^(−uX) du, for X from `least` to `most`.

    The first width also covers all nodes below it, where e^(−uX) is one: their widths are a
    geometric series.
    """
    first = SMALL / most
    points = math.ceil(math.log(LARGE / least / first) / STEP) + 1
    yield first, STEP * first * (1 + 1 / math.expm1(STEP))
    yield from ((u, STEP * u) for u in (first * math.exp(STEP * k) for k in range(1, points)))


def debtors(shares: Floats, wanted: Floats, size: int, many: Ints | None = None) -> Ints:
    """Return the number of clients of each group whose debt is among the `size` largest.

    `wanted` is the target weight of one client of each group, and its debt is that weight minus its
    share of the arrivals. Ties keep the order of the groups.

    >>> debtors(np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.25, 0.25, 0.25, 0.25]), 2)
    array([0, 0, 1, 1])
    """
    counts = np.ones(shares.size, np.int64) if many is None else many
    debt = wanted - shares
    order = np.argsort(-debt, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    taken = np.zeros(shares.size, np.int64)
    taken[order] = np.clip(size - before, 0, counts[order])
    return np.where(debt > NO_DEBT, taken, 0)


def debt_influence(shares: Floats, many: Ints, wanted: Floats, size: int, mass: float) -> Floats:
    """Return the influence under replay by participation debt.

    R are the clients with the K largest debts. Their weights are W_r = f_r, in total at most
    `mass`. The m arrivals of a round from other clients share 1 − ρ by x_i = f_i / p_i, and m is
    binomial. As 1/X = ∫ e^(−uX) du, the sum over m has a closed form, with C the clients outside R:

        π_i = (1 − ρ) K p_i x_i ∫ e^(−u x_i) (Σ_R p + Σ_C p_j e^(−u x_j))^(K−1) du
        π_r = W_r (1 − q) + q W_r / ρ        with q = (Σ_R p)^K, the chance of m = 0

    >>> even = np.full(4, 0.25)
    >>> debt_influence(np.array([0.4, 0.4, 0.1, 0.1]), np.ones(4, np.int64), even, 2, 0.5).round(3)
    array([0.24, 0.24, 0.26, 0.26])
    """
    taken = debtors(shares, wanted, size, many)
    others = many - taken
    rho = float((taken * wanted).sum())
    scale = min(1.0, mass / rho) if rho else 1.0
    rho *= scale
    left = float((others * shares).sum())
    alone = max(0.0, 1 - left) ** size
    common = np.zeros(shares.size)
    if others.any():
        x = wanted / shares
        own = x[others > 0]
        for u, width in nodes(float(own.min()), size * float(own.max())):
            damped = np.exp(-u * x)
            rest = max(0.0, 1 - left) + float((others * shares * damped).sum())
            common += width * damped * rest ** (size - 1)
        common *= size * shares * x
        whole = float((others * common).sum())
        common *= (1 - rho) * (1 - alone) / whole
    replayed = scale * wanted * ((1 - alone) + (alone / rho if rho else 0.0))
    found = (others * common + taken * replayed) / many
    return np.asarray(found / (found * many).sum(), np.float64)


def interval_influence(shares: Floats, many: Ints, size: int, cutoff: int) -> Floats:
    """Return the influence under FedAU.

    Client i is in a step with probability P = 1 − (1 − p_i)^K. An interval between two of its steps
    is geometric and cut off at C. Its mean (1 − (1 − P)^C) / P is the weight of the update. So π_i
    is proportional to 1 − (1 − p_i)^(K C): all clients have the same weight, except those in fewer
    than one of C steps.

    >>> interval_influence(np.array([0.9, 0.1]), np.ones(2, np.int64), 1, 5).round(3)
    array([0.709, 0.291])
    """
    found = -np.expm1(size * cutoff * _log_absent(shares))
    return np.asarray(found / (found * many).sum(), np.float64)


def corrected_influence(shares: Floats, many: Ints, size: int, cutoff: int, beta: float) -> Floats:
    """Return the influence under FedStale with estimated participation.

    The cache gives β/N to each client. FedAU's intervals determine the rest, but a client that
    arrives several times in a step counts each time: K p_i arrivals in a step instead of one with
    probability P. So π_i is proportional to β + (1 − β)(K p_i / P)(1 − (1 − p_i)^(K C)).

    >>> corrected_influence(np.array([0.9, 0.1]), np.ones(2, np.int64), 1, 10**6, 0.5)
    array([0.5, 0.5])
    """
    log_absent = _log_absent(shares)
    repeats = size * shares / -np.expm1(size * log_absent)
    found = beta + (1 - beta) * repeats * -np.expm1(size * cutoff * log_absent)
    return np.asarray(found / (found * many).sum(), np.float64)


def recent_influence(shares: Floats, many: Ints, window: int, needed: int = 1) -> Floats:
    """Return the influence if clients with `needed` of the last `window` arrivals weigh the same.

    ACED with the age "contact" counts the clients A of the last τ + 1 arrivals, so client i counts
    with probability P_i = 1 − (1 − p_i)^(τ+1). With the age "start" a client counts while the model
    from which its last update started is at most τ arrivals old, so it needs two arrivals among the
    last τ + 2. A client in A has the weight 1/|A|. The mean of |A| given that i is in A replaces
    |A|: if i then has c arrivals on average, the others have the remaining n − c.

    >>> recent_influence(np.array([0.5, 0.25, 0.25]), np.ones(3, np.int64), 1)
    array([0.5 , 0.25, 0.25])
    """
    log_absent = _log_absent(shares)

    def counts(arrivals: float | Floats) -> Floats:
        """Return the probability that each client counts, given the number of arrivals."""
        found = -np.expm1(arrivals * log_absent)
        if needed == 2:
            found -= arrivals * shares * np.exp((arrivals - 1) * log_absent)
        return np.asarray(np.maximum(found, 0.0), np.float64)

    chance = counts(window)
    rest = 1.0 if needed == 1 else -np.expm1((window - 1) * log_absent)
    own = window * shares * rest / np.maximum(chance, 1e-300)  # the arrivals of a client in A
    # The number of arrivals of all clients that contains the others' remaining ones.
    everyone = np.maximum(window - own, 0.0) / np.exp(log_absent)
    grid = np.append(0.0, np.geomspace(0.1, max(1.0, float(everyone.max())), POINTS))
    sizes = [float((many * counts(arrivals)).sum()) for arrivals in grid]
    others = np.interp(everyone, grid, sizes) - counts(everyone)
    found = chance / (1 + np.maximum(others, 0.0))
    return np.asarray(found / (found * many).sum(), np.float64)


def staleness_influence(
    shares: Floats, many: Ints, size: int, remembered: int, offset: float = 0.0
) -> Floats:
    """Return the influence under FedStaleWeight.

    The weight of an update is m_i, the mean of its client's last `remembered` staleness values in
    versions, over the sum of the step's K weights. With Q = (1 − p)^K and
    b = (1 − p)(1 − Q)/(K p), staleness has the distribution P(τ = 0) = 1 − b and
    P(τ = j) = b (1 − Q) Q^(j−1), and the Laplace transform
    L(s) = E e^(−sτ) = 1 − b + b (1 − Q) e^(−s) / (1 − Q e^(−s)). As 1/X = ∫ e^(−uX) du,

        π_i = K p_i ∫ E[m_i e^(−u m_i)] φ(u)^(K−1) du,   φ(u) = Σ_j p_j E e^(−u m_j)

    In a step in which every m is zero, the K updates have equal weights. The formula treats slots
    as independent.

    >>> staleness_influence(np.array([0.9, 0.1]), np.ones(2, np.int64), 1, 5).round(3)
    array([0.9, 0.1])
    """
    log_absent = _log_absent(shares)
    fresh = -np.expm1(size * log_absent)  # 1 − Q
    later = (1 - shares) * fresh / (size * shares)  # b
    mean = later / np.maximum(fresh, 1e-300)
    most = size * (LONGEST * float(mean.max()) + offset) + 1.0
    found = np.zeros(shares.size)
    for u, width in nodes(min(1.0 / remembered, offset or 1.0), most):
        s = u / remembered
        x = math.exp(-s)
        decay = -np.expm1(size * log_absent - s)  # 1 − Q e^(−s)
        transform = 1 - later + later * fresh * x / decay
        # E[m e^(−um)] / E e^(−um), less the offset; the square of `decay` could underflow.
        weight = later * x * (fresh / decay) / decay / transform
        damped = math.exp(-u * offset) * transform**remembered
        phi = float((many * shares * damped).sum())
        found += width * (weight + offset) * damped * phi ** (size - 1)
    found *= size * shares
    if not offset:
        zero = (1 - later) ** remembered
        found += shares * zero * float((many * shares * zero).sum()) ** (size - 1)
    return np.asarray(found / (found * many).sum(), np.float64)


def _log_absent(shares: Floats) -> Floats:
    """Return log(1 − p), which stays finite for a client that sends every update."""
    return np.asarray(np.log1p(-np.minimum(shares, 1 - 1e-15)), np.float64)
