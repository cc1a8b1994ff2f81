"""How many of many independent, unequal coins fall heads: the Poisson-binomial law."""

from __future__ import annotations

import numpy as np

from fedraw.core.types import Floats, Ints

NOTHING = 1e-40  # a chance that changes no digit of any other


def pmf(q: Floats, top: int, many: Ints | None = None) -> Floats:
    """Probabilities of 0, 1, …, `top` heads; coin j falls heads with chance q[j], `many[j]` times.

    The generating polynomials are multiplied pair by pair, all pairs of a level at once, and cut
    off above `top`: O(n · top), and every term is positive, so nothing cancels.

    >>> pmf(np.array([0.5, 0.5, 1.0]), 2)
    array([0.  , 0.25, 0.5 ])
    """
    level = _trimmed(of_each(q, top, many))
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
    """The law of the sum of two independent counts, cut off above `top`."""
    return np.convolve(a, b)[: top + 1]


def of_each(q: Floats, top: int, many: Ints | None = None) -> Floats:
    """The law of each coin alone, thrown `many` times: one column each, rows 0, 1, … heads."""
    if many is None or many.max(initial=1) == 1:
        return np.vstack([1 - q, q])[: top + 1]
    degree = min(int(many.max()), top)
    leaves = np.empty((degree + 1, q.size))
    with np.errstate(divide="ignore", invalid="ignore"):
        # (1 − q)^m may be far below the smallest float where the middle of the law is not.
        log_odds, term = np.log(q) - np.log1p(-q), many * np.log1p(-q)
        for k in range(degree + 1):
            leaves[k] = np.where(k <= many, np.exp(term), 0.0)
            term = term + np.log(np.maximum(many - k, 0)) - np.log(k + 1) + log_odds
    always = q == 1  # whose odds are infinite
    leaves[:, always] = np.arange(degree + 1)[:, None] == many[always]
    return leaves


def _trimmed(level: Floats) -> Floats:
    """Without the last rows, if nothing is in them: a large group is seldom far from its mean."""
    rows = np.flatnonzero((level > NOTHING).any(axis=1))
    return level[: rows[-1] + 1] if rows.size else level


def _multiply(a: Floats, b: Floats, top: int) -> Floats:
    degree = min(a.shape[0] + b.shape[0] - 2, top)
    product = np.zeros((degree + 1, a.shape[1]))
    for k in range(a.shape[0]):
        rows = min(b.shape[0], degree + 1 - k)
        product[k : k + rows] += a[k] * b[:rows]
    return product
