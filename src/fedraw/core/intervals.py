"""95 % intervals of counts and means, without SciPy."""

from __future__ import annotations

from functools import cache
from math import atan, cos, lgamma, pi, sin, sqrt

import numpy as np

from fedraw.core.types import Floats, Ints

_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_EXACT_UP_TO = 60

# Above this many degrees of freedom, the expansion of Student's quantile is exact to 2e-6.
_EXPANSION_ABOVE = 30


def poisson_interval(events: Ints) -> tuple[Floats, Floats]:
    """Return the exact, equal-tailed 95 % interval of a Poisson mean for each observed count.

    For a count of 0 the interval is one-sided.

    >>> low, high = poisson_interval(np.array([0, 1, 10]))
    >>> low.round(3), high.round(3)
    (array([0.   , 0.025, 4.795]), array([ 2.996,  5.572, 18.39 ]))
    """
    seen, where = np.unique(events, return_inverse=True)
    some = np.maximum(seen, 1)
    low = np.where(seen > 0, _gamma_quantiles(some, -_Z), 0.0)
    high = np.where(seen > 0, _gamma_quantiles(some + 1, _Z), -np.log(0.05))
    return low[where], high[where]


def _gamma_quantiles(shape: Ints, z: float) -> Floats:
    """Return the quantiles of Gamma(shape, 1) at the level of the normal quantile z.

    The level is 2.5 or 97.5 %. The Wilson-Hilferty approximation has a relative error below 6e-5
    for shapes above `_EXACT_UP_TO`. For smaller shapes its error reaches a half, so there it is
    only the starting point of Newton's method.
    """
    cubes = shape * (1 - 1 / (9 * shape) + z / (3 * np.sqrt(shape))) ** 3
    small = shape <= _EXACT_UP_TO
    starts = zip(shape[small].tolist(), cubes[small].tolist(), strict=True)
    cubes[small] = [_newton(k, x, z) for k, x in starts]
    return np.asarray(cubes, np.float64)


def _newton(shape: int, x: float, z: float) -> float:
    """Solve P(Poisson(x) < shape) = tail for x; steps in log x keep x positive."""
    tail = 0.975 if z < 0 else 0.025
    j = np.arange(shape)
    log_factorials = np.array([lgamma(k + 1) for k in j])
    for _ in range(50):
        terms = np.exp(j * np.log(x) - x - log_factorials)
        step = (terms.sum() - tail) / (terms[-1] * x)
        x *= np.exp(np.clip(step, -1, 1))
        if abs(step) < 1e-12:
            break
    return x


def student_quantiles(freedom: Ints) -> Floats:
    """Return the 97.5 % quantile of Student's t for each number of degrees of freedom.

    >>> student_quantiles(np.array([1, 30])).round(3)
    array([12.706,  2.042])
    """
    known, where = np.unique(np.maximum(freedom, 1), return_inverse=True)
    return np.array([student_quantile(int(own)) for own in known])[where]


@cache
def student_quantile(freedom: int, confidence: float = 0.95) -> float:
    """Return the t with P(|T| < t) = `confidence` under Student's t distribution.

    >>> [round(student_quantile(freedom), 3) for freedom in (1, 2, 4, 29)]
    [12.706, 4.303, 2.776, 2.045]
    >>> round(student_quantile(4, 0.99), 3), round(student_quantile(40, 0.99), 3)
    (4.604, 2.704)
    """
    if freedom > _EXPANSION_ABOVE and confidence == 0.95:
        z, v = _Z, float(freedom)
        return (
            z
            + (z**3 + z) / (4 * v)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        )
    low, high = 0.0, 100.0
    while _student_within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def _student_within(t: float, freedom: int) -> float:
    """Return P(|T| < t), in closed form for a whole number of degrees of freedom."""
    angle = atan(t / sqrt(freedom))
    term, first = (1.0, 2) if freedom % 2 == 0 else (cos(angle), 3)
    total = term
    for n in range(first, freedom - 1, 2):
        term *= cos(angle) ** 2 * (n - 1) / n
        total += term
    if freedom % 2 == 0:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if freedom > 1 else 0.0))
