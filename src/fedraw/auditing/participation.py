"""Influence under methods that make up for how often clients arrive.

Arrivals are memoryless, client i sends the share p_i of them, and a step takes K arrivals. Each
function gives the influence of one client in each group of `many` clients that arrive alike; it
sums to one over all clients. All of it is about the long run, when every client has been heard.

    debt       replay by participation debt: clients weigh what they should, whoever arrives
    intervals  FedAU: an update weighs as many steps as lie between two updates of its client
    corrected  FedStale: the same, and to the extent β every client alike
    staleness  FedStaleWeight: an update weighs as much as its client's updates are stale
    recent     ACED: the clients of the last arrivals weigh alike
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedraw.core.types import Floats, Ints

STEP = 0.6  # in log u; the trapezoid rule's error is then 6e-7
SMALL, LARGE = 1e-3, 18.0  # u X at both ends: the integrand is flat below, zero above
# A geometric waiting time is hardly ever longer than so many times its mean.
LONGEST = 40.0
# At so many numbers of arrivals the mean number of distinct clients is computed.
POINTS = 96
# A smaller debt is a rounding error of equal shares.
NO_DEBT = 1e-9


def nodes(least: float, most: float) -> Iterator[tuple[float, float]]:
    """Nodes u with their widths for 1/X = ∫ e^(−uX) du, if X is from `least` to `most`.

    The first width also stands for all nodes below it, where e^(−uX) is one: their widths are a
    geometric series.
    """
    first = SMALL / most
    points = math.ceil(math.log(LARGE / least / first) / STEP) + 1
    yield first, STEP * first * (1 + 1 / math.expm1(STEP))
    yield from ((u, STEP * u) for u in (first * math.exp(STEP * k) for k in range(1, points)))


def debtors(shares: Floats, wanted: Floats, size: int, many: Ints | None = None) -> Ints:
    """How many clients of each group have a debt that is among the `size` largest.

    `wanted` is what one client of each group should weigh, and its debt is that less its share of
    the arrivals. Of equal debts the first come first.

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
    """The influence under replay by participation debt.

    R are the clients with the K largest debts. They weigh W_r = f_r, together at most `mass`. The
    m arrivals of a round from other clients share 1 − ρ by x_i = f_i / p_i, and m is binomial. As
    1/X = ∫ e^(−uX) du, the sum over m has a closed form, with C the clients outside R:

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
    """The influence under FedAU.

    Client i is in a step with the chance P = 1 − (1 − p_i)^K. An interval between two of its steps
    is geometric and cut off at C, with the mean (1 − (1 − P)^C) / P, and its update weighs that
    much. So π_i is proportional to 1 − (1 − p_i)^(K C): clients weigh alike, except those that are
    in fewer than one in C steps.

    >>> interval_influence(np.array([0.9, 0.1]), np.ones(2, np.int64), 1, 5).round(3)
    array([0.709, 0.291])
    """
    found = -np.expm1(size * cutoff * _log_absent(shares))
    return np.asarray(found / (found * many).sum(), np.float64)


def corrected_influence(shares: Floats, many: Ints, size: int, cutoff: int, beta: float) -> Floats:
    """The influence under FedStale with estimated participation.

    A cache of every client gives β/N to each. The rest goes by FedAU's intervals, but a client that
    arrives several times in a step counts each time: K p_i arrivals in a step instead of one with
    the chance P. So π_i is proportional to β + (1 − β)(K p_i / P)(1 − (1 − p_i)^(K C)).

    >>> corrected_influence(np.array([0.9, 0.1]), np.ones(2, np.int64), 1, 10**6, 0.5)
    array([0.5, 0.5])
    """
    log_absent = _log_absent(shares)
    repeats = size * shares / -np.expm1(size * log_absent)
    found = beta + (1 - beta) * repeats * -np.expm1(size * cutoff * log_absent)
    return np.asarray(found / (found * many).sum(), np.float64)


def recent_influence(shares: Floats, many: Ints, window: int, needed: int = 1) -> Floats:
    """The influence if those with `needed` arrivals among the last `window` weigh alike.

    ACED with the age "contact" counts the clients A of the last τ + 1 arrivals, so that a client
    counts with the chance P_i = 1 − (1 − p_i)^(τ+1). With the age "start" a client counts while the
    model from which its last update started is at most τ arrivals old, so it needs two arrivals
    among the last τ + 2. A client in A weighs 1/|A|, and the mean of |A| given that i is in A takes
    the place of |A|: if i has c arrivals on average then, the others have the remaining n − c.

    >>> recent_influence(np.array([0.5, 0.25, 0.25]), np.ones(3, np.int64), 1)
    array([0.5 , 0.25, 0.25])
    """
    log_absent = _log_absent(shares)

    def counts(arrivals: float | Floats) -> Floats:
        """The chance that each client counts among so many arrivals."""
        found = -np.expm1(arrivals * log_absent)
        if needed == 2:
            found -= arrivals * shares * np.exp((arrivals - 1) * log_absent)
        return np.asarray(np.maximum(found, 0.0), np.float64)

    chance = counts(window)
    rest = 1.0 if needed == 1 else -np.expm1((window - 1) * log_absent)
    own = window * shares * rest / np.maximum(chance, 1e-300)  # the arrivals of a client in A
    # As many arrivals of everyone as contain the others' remaining ones.
    everyone = np.maximum(window - own, 0.0) / np.exp(log_absent)
    grid = np.append(0.0, np.geomspace(0.1, max(1.0, float(everyone.max())), POINTS))
    sizes = [float((many * counts(arrivals)).sum()) for arrivals in grid]
    others = np.interp(everyone, grid, sizes) - counts(everyone)
    found = chance / (1 + np.maximum(others, 0.0))
    return np.asarray(found / (found * many).sum(), np.float64)


def staleness_influence(
    shares: Floats, many: Ints, size: int, remembered: int, offset: float = 0.0
) -> Floats:
    """The influence under FedStaleWeight.

    An update weighs m_i, the mean of its client's last `remembered` stalenesses in versions, over
    the sum of the step's K weights. With Q = (1 − p)^K and b = (1 − p)(1 − Q)/(K p), staleness has
    the law P(τ = 0) = 1 − b and P(τ = j) = b (1 − Q) Q^(j−1). So its transform is known,
    L(s) = E e^(−sτ) = 1 − b + b (1 − Q) e^(−s) / (1 − Q e^(−s)), and as 1/X = ∫ e^(−uX) du

        π_i = K p_i ∫ E[m_i e^(−u m_i)] φ(u)^(K−1) du,   φ(u) = Σ_j p_j E e^(−u m_j)

    A step in which every m is zero weighs its K updates alike. The slots count as independent.

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
    """log(1 − p), finite also for a client that sends every update."""
    return np.asarray(np.log1p(-np.minimum(shares, 1 - 1e-15)), np.float64)
