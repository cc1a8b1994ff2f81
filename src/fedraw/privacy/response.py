"""Randomised response (Warner, 1965): noisy presence bits, and coverage estimated from them.

Each bit is sent as it is with probability p = e^ε / (1 + e^ε), and flipped otherwise. If c of N
clients hold a label, the sum B of their answers has the mean c p + (N − c)(1 − p). The estimate is

    ĉ = (B − N (1 − p)) / (2p − 1),   unbiased, with variance N / (4 sinh²(ε / 2)) whatever c is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput
from fedraw.privacy.budget import usable
from fedraw.privacy.opendp_library import opendp, within


def truth_probability(epsilon_per_bit: float) -> float:
    """Return the probability that a bit is sent as it is; its odds are e^ε.

    >>> round(truth_probability(math.log(3)), 12)
    0.75
    """
    return 1 / (1 + math.exp(-usable(epsilon_per_bit)))


def randomised_bits(held: Sequence[bool], epsilon_per_bit: float) -> list[bool]:
    """Return the bits that a client sends, one for each label, each private at epsilon_per_bit.

    The noise is OpenDP's, from the operating system's generator, and has no seed. Draw once and
    send the same bits whenever asked, because every new draw costs the budget again.
    """
    respond = responder(epsilon_per_bit)
    return [bool(respond(bool(bit))) for bit in held]


def responder(epsilon_per_bit: float) -> Any:
    """Return OpenDP's randomised response for one bit; its `map(1)` is at most epsilon_per_bit."""
    probability = truth_probability(epsilon_per_bit)
    make = opendp().m.make_randomized_response_bool
    return within(epsilon_per_bit, 1, lambda p: make(p, constant_time=True), probability, 0.5)


def simulated_sums(
    coverage: Ints, clients: int, epsilon_per_bit: float, rng: np.random.Generator
) -> Ints:
    """Draw the sums of all clients' answers from the same distribution, repeatably.

    This is NOT private, because it has a seed.
    """
    p = truth_probability(epsilon_per_bit)
    true_yes, false_yes = rng.binomial(coverage, p), rng.binomial(clients - coverage, 1 - p)
    return np.asarray(true_yes + false_yes, np.int64)


def unbiased_coverage(bit_sums: npt.ArrayLike, clients: int, epsilon_per_bit: float) -> Floats:
    """Estimate how many clients hold each label; the result may be below 0 or above `clients`."""
    sums = np.asarray(bit_sums, np.float64)
    if np.any((sums < 0) | (sums > clients)):
        raise BadInput(
            f"a sum of {clients} clients' bits lies between 0 and {clients}, not at "
            f"{sums[(sums < 0) | (sums > clients)][0]:g}; were all bits counted once?"
        )
    lie = 1 - truth_probability(epsilon_per_bit)
    return (sums - clients * lie) / math.tanh(epsilon_per_bit / 2)  # 2p − 1 without cancellation


def estimated_coverage(bit_sums: npt.ArrayLike, clients: int, epsilon_per_bit: float) -> Floats:
    """Return the coverage that the server publishes: the unbiased estimate, clipped to 1..clients.

    Clipping at 1 biases the estimates of the rarest labels upwards.

    >>> estimated_coverage([2, 20], clients=30, epsilon_per_bit=20).round(3)
    array([ 2., 20.])
    """
    return np.clip(unbiased_coverage(bit_sums, clients, epsilon_per_bit), 1, clients)


def coverage_sd(clients: int, epsilon_per_bit: float) -> float:
    """Return the standard deviation of the unbiased estimate, the same for every label.

    >>> round(coverage_sd(clients=30, epsilon_per_bit=1), 2)
    5.26
    """
    return math.sqrt(clients) / (2 * math.sinh(usable(epsilon_per_bit) / 2))
