"""Residual replay in closed form: what those who are replayed weigh, and what is left for others.

A round is K arrivals, each client i's with chance p_i. Once everyone in R was heard, r in R weighs
W_r whoever arrived, and the common arrivals share 1 − ρ, ρ = Σ_R W_r; only if all K are of clients
in R, which has the chance q = (Σ_R p)^K, do those in R have it all, W_r / ρ. Hence

    π_r = W_r (1 − q) + q W_r / ρ        π_i = (1 − ρ) (1 − q) p_i / Σ_C p     for i outside R

Weight is the share a client has in a step. What is applied of r's update is max(0, 1 − p_r) times
W_r: nothing once the model has followed it, more than W_r where others have undone more than that.
"""

from __future__ import annotations

import numpy as np

from fedraw.core.types import Floats, Ints


def replay_influence(
    shares: Floats, many: Ints, replayed: Ints, weight: Floats, size: int
) -> Floats:
    """π of one client of each group; `replayed` are the groups, of one client each, of those in R.

    >>> halves = np.array([0.5, 0.25, 0.25])
    >>> replay_influence(halves, np.ones(3, np.int64), np.array([2]), np.array([0.4]), 1)
    array([0.3 , 0.15, 0.55])
    """
    common = np.ones(shares.size, np.bool_)
    common[replayed] = False
    left = float((shares * many)[common].sum())
    rho = float(weight.sum())
    # 1 − q, which is tiny where common clients hardly ever come.
    others = 1.0 if left >= 1 else float(-np.expm1(size * np.log1p(-left)))
    found = np.where(common, (1 - rho) * others * shares / left, 0.0)
    found[replayed] = weight * (others + (1 - others) / rho) if rho else 0.0
    return found
