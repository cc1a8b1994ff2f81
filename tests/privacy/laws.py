"""The distributions of the mechanisms, and the largest allowed deviation of a sample."""

from __future__ import annotations

import math

import numpy as np

from fedraw.core.types import Floats

# Each statistical test fails by chance less often than this.
CHANCE = 1e-9


def band(samples: int) -> float:
    """Dvoretzky-Kiefer-Wolfowitz with Massart's constant: P(sup |F_n − F| > band) ≤ CHANCE."""
    return math.sqrt(math.log(2 / CHANCE) / (2 * samples))


def binomial(n: int, p: float) -> Floats:
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def answers(holders: int, clients: int, epsilon: float) -> Floats:
    """P(B = b) for b = 0..N: the distribution of the sum of all clients' bits."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.convolve(binomial(holders, p), binomial(clients - holders, 1 - p))


def laplace_below(steps: Floats, scale: float) -> Floats:
    """P(noise ≤ steps) of the discrete Laplace distribution P(k) ∝ exp(−|k| / scale)."""
    ratio = math.exp(-1 / scale)
    # The exponent that np.where does not take is kept from overflowing.
    over = 1 - ratio ** (np.maximum(steps, 0) + 1) / (1 + ratio)
    under = ratio ** np.maximum(-steps, 0) / (1 + ratio)
    return np.where(steps >= 0, over, under)


def strays(sample: Floats, at: Floats, below: Floats) -> float:
    """The largest gap between the sample's and the true distribution function at these points."""
    found = np.searchsorted(np.sort(sample), at, side="right") / len(sample)
    return float(np.abs(found - below).max())
