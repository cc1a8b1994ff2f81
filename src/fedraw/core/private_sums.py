"""Differential privacy of sums: clipped samples, Gaussian noise once a message, and epsilon.

Each sample's features are scaled down to a norm of at most B, so one sample changes the counts by
1, the sums by at most B and the products by at most B². The noise of each part is measured by what
one sample changes in it, and the shares say how much of the budget a part has:

    counts N(0, (k z)² / 0.1)    sums N(0, (k z B)² / 0.6)    products N(0, (k z B²)² / 0.3)

for at most k samples of one person, off the diagonal of the products with half the variance,
because a symmetric matrix has each of these numbers twice. As a whole this is one Gaussian
mechanism of sensitivity 1 and noise z. The message is on a grid, so rounding the noise to it is the
same as rounding the sum: totals stay exact, and the last bits of a float reveal nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.settings import COUNT, Range, Settings, above
from fedraw.core.sums import GRID, LIMIT, MOST_SAMPLES, SumsShape, is_multiple, on_grid
from fedraw.core.types import ClientId, Floats
from fedraw.errors import BadInput, RefusedUpdate

# The shares of the counts, the sums and the products in the budget. They were chosen on digits
# (seeds 1 to 5): equal shares lost up to 15 points of accuracy, because the means suffer first.
SHARES = (0.1, 0.6, 0.3)
# Noise beyond so many standard deviations is refused; 2 · 10⁻¹⁵ of all honest numbers have it.
FARTHEST = 8.0
# Below these numbers, sums of multiples of 2⁻²⁰ are exact.
EXACT = 2.0**33
EPSILON, DELTA = Range(0.01, 100.0), Range(1e-12, 0.1)
# A label counts as present above so many standard deviations of its noisy count.
PRESENT = 2.0


class Noise(NamedTuple):
    """The standard deviation of the noise of counts, sums and products (on the diagonal)."""

    counts: float
    sums: float
    products: float

    def of_messages(self, count: int) -> Noise:
        """Return the noise of the total of so many messages."""
        return Noise(*(own * math.sqrt(count) for own in self))


@dataclass(frozen=True)
class SumsPrivacy(Settings):
    """The budget of one message, and what it protects.

    Attributes:
        epsilon: The budget of one message.
        delta: The probability that the bound of epsilon does not hold.
        clip: The root mean square to which the features of a sample are scaled down. The norm B is
            `clip` · √d for d features.
        group: The most samples of one person at a site. Epsilon covers all of them together.

    >>> round(SumsPrivacy(epsilon=1.0).multiplier, 3)
    3.731

    """

    epsilon: Annotated[float, EPSILON]
    delta: Annotated[float, DELTA] = 1e-5
    clip: Annotated[float, above(0)] = 1.0
    group: Annotated[int, COUNT] = 1

    def validate(self) -> None:
        """Refuse a budget that needs too much noise."""
        noise_for(self.epsilon, self.delta)

    @property
    def multiplier(self) -> float:
        """The deviation z of the noise, where one sample changes everything by 1."""
        return noise_for(self.epsilon, self.delta)

    def noise(self, shape: SumsShape) -> Noise:
        """Return the noise of one message."""
        bound, one = self.bound(shape), self.group * self.multiplier
        changed = zip((1.0, bound, bound**2), SHARES, strict=True)
        return Noise(*(one * size / math.sqrt(share) for size, share in changed))

    def bound(self, shape: SumsShape) -> float:
        """Return B, the largest norm of a sample's features."""
        return self.clip * math.sqrt(shape.features)

    def clipped(self, shape: SumsShape, features: npt.NDArray[Any]) -> Floats:
        """Return the features on the grid, each sample scaled down to a norm of at most B.

        >>> SumsPrivacy(1.0).clipped(SumsShape(1, 4), np.array([[3.0, 0, 4, 0]])).tolist()
        [[1.19921875, 0.0, 1.599609375, 0.0]]
        """
        found = on_grid(features)
        norms = np.sqrt(np.square(found).sum(axis=1))
        part = self.bound(shape) / np.maximum(norms, self.bound(shape)) * (1 - 1e-15)
        found *= np.where(norms > self.bound(shape), part, 1.0)[:, None]
        # Towards zero, because rounding up could pass the bound.
        return np.asarray(np.trunc(found / GRID) * GRID + 0.0)

    def noised(self, shape: SumsShape, exact: Floats, rng: np.random.Generator) -> Floats:
        """Return the message of clipped samples with noise in every number.

        Labels that the client does not have get noise as well. Another generator for the same
        samples spends the budget again.
        """
        message, own = exact.copy(), self.noise(shape)
        shape.counts(message)[:] += np.rint(rng.normal(0, own.counts, shape.labels))
        sums, triangle = shape.sums(message), shape.triangle(message)
        sums += _rounded(rng.normal(0, own.sums, sums.shape), GRID)
        drawn = rng.normal(0, own.products / math.sqrt(2), triangle.shape)
        drawn[shape.diagonal] *= math.sqrt(2)
        triangle += _rounded(drawn, GRID**2)
        message += 0.0
        return message

    def samples(self, shape: SumsShape, message: Floats) -> float:
        """Return a number that the samples behind a message certainly do not exceed."""
        slack = FARTHEST * self.noise(shape).counts * math.sqrt(shape.labels)
        return max(0.0, float(shape.counts(message).sum())) + slack

    def check(self, shape: SumsShape, client: ClientId, message: Floats) -> None:
        """Refuse a message that clipped samples with this noise cannot have.

        Every bound is that of the samples plus eight standard deviations of the noise. So what a
        dishonest client may add grows with the noise.
        """
        counts, sums, own = shape.counts(message), shape.sums(message), self.noise(shape)
        triangle = shape.triangle(message)
        samples, entry = self.samples(shape, message), min(LIMIT, self.bound(shape))
        held = np.maximum(0.0, counts) + FARTHEST * own.counts
        slack, problem = FARTHEST * own.products, None
        if (counts != np.rint(counts)).any():
            problem = "counts that are not whole numbers"
        elif (counts < -FARTHEST * own.counts).any():
            problem = (
                f"counts below {-FARTHEST * own.counts:,.0f}, which the noise does not explain"
            )
        elif samples > MOST_SAMPLES:
            problem = f"counts of up to {samples:,.0f} samples, more than {MOST_SAMPLES:,}"
        elif not (is_multiple(sums, GRID) and is_multiple(triangle, GRID**2)):
            problem = "sums that are not on the grid of 2⁻¹⁰, or products not on that of 2⁻²⁰"
        elif (np.abs(sums) > (entry * held + FARTHEST * own.sums)[:, None]).any():
            problem = f"sums above {entry:g} a sample and the noise"
        elif triangle.size and np.abs(triangle).max() > entry**2 * samples + slack:
            problem = f"products above {entry**2:g} a sample and the noise"
        elif (shape.squares(message) < -slack).any():
            problem = f"squares below {-slack:,.0f}, which the noise does not explain"
        elif shape.squares(message).sum() > self._most_squares(shape, samples):
            problem = f"norms above {self.bound(shape):g} a sample and the noise"
        if problem is not None:
            raise RefusedUpdate(f"client {client!r} sent {problem}")

    def _most_squares(self, shape: SumsShape, samples: float) -> float:
        slack = FARTHEST * self.noise(shape).products * math.sqrt(shape.features)
        return self.bound(shape) ** 2 * samples + slack


def _rounded(noise: Floats, step: float) -> Floats:
    return np.asarray(np.rint(noise / step) * step)


@cache
def noise_for(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one Gaussian release, from the exact formula.

    A Gaussian mechanism of sensitivity 1 and deviation z has δ(ε) = Φ(1/(2z) − εz) − e^ε
    Φ(−1/(2z) − εz) (Balle and Wang, arXiv 1805.06530). The textbook formula √(2 log(1.25/δ)) / ε
    needs 4.84 at the same ε = 1 and is only valid below 1.

    >>> [round(noise_for(epsilon, 1e-5), 2) for epsilon in (1, 3, 8)]
    [3.73, 1.39, 0.6]
    """
    low, high = 1e-3, 1e6  # z falls with epsilon
    if delta_of(high, epsilon) > delta:
        raise BadInput(f"epsilon = {epsilon} and delta = {delta} need too much noise")
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        if delta_of(middle, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high


def delta_of(multiplier: float, epsilon: float) -> float:
    """Return δ of one Gaussian release of sensitivity 1 at this epsilon."""
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return _below(half - shift) - math.exp(epsilon) * _below(-half - shift)


def _below(x: float) -> float:
    """Return the probability that a standard normal number is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
