"""The privacy budget: which mechanism reveals a client's labels, and with which epsilon.

`opendp` and `within` give the mechanisms of OpenDP that stay within a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, get_args

from fedraw.errors import BadInput, MissingExtra, nearest

Mechanism = Literal["randomised-response", "secure-sum"]
Unit = Literal["client", "label"]

# The range of epsilon for one bit or one score. Below it, floats cannot tell the distribution of
# the answers from a fair coin. Above it, fewer than one answer in 400 million is flipped, so there
# is practically no noise.
LEAST, MOST = 1e-6, 20.0


@dataclass(frozen=True)
class Privacy:
    """How clients report their labels for the coverage, and their own rarity scores.

    randomised-response  each client sends its presence bits, flipped at random, at `epsilon`
    secure-sum           the server learns the exact sum of the bits and no single one

    `unit` is what epsilon protects. "client" protects the whole label set: each of the L bits gets
    epsilon / L. "label" protects the presence of one label: each bit gets epsilon, so the whole set
    costs L · epsilon. Each client also sends its score. Without `score_epsilon` the score has no
    noise.

    >>> Privacy("randomised-response", epsilon=2, unit="client").epsilon_per_bit(labels=10)
    0.2
    >>> Privacy("randomised-response", epsilon=2, unit="label", score_epsilon=3).of_a_client(10)
    23.0
    """

    mechanism: Mechanism
    epsilon: float | None = None
    unit: Unit = "client"
    score_epsilon: float | None = None

    def __post_init__(self) -> None:
        _one_of("mechanism", self.mechanism, get_args(Mechanism))
        _one_of("unit", self.unit, get_args(Unit))
        if self.mechanism == "secure-sum":
            if self.epsilon is not None:
                raise BadInput(
                    f"epsilon = {self.epsilon!r} means nothing to a secure sum, "
                    "which adds no noise; leave it out"
                )
        elif self.epsilon is None:
            raise BadInput("epsilon is missing; randomised response needs one, 2 say")
        elif not _positive(self.epsilon):
            raise BadInput(f"epsilon = {self.epsilon!r} is no budget; give a number over 0")
        if self.score_epsilon is not None:
            usable(self.score_epsilon, "score_epsilon")

    def epsilon_per_bit(self, labels: int) -> float:
        """Return the epsilon of one presence bit, given the number of labels."""
        if self.epsilon is None:
            raise BadInput("a secure sum flips no bits, so there is no epsilon per bit")
        own = self.epsilon / labels if self.unit == "client" else self.epsilon
        if not LEAST <= own <= MOST:
            raise BadInput(
                f"epsilon = {self.epsilon!r} comes to {own:g} for each of {labels} labels; "
                f"that has to be from {LEAST:g} to {MOST:g}"
            )
        return float(own)

    def of_a_client(self, labels: int) -> float:
        """Return the epsilon of everything that one client sends; inf if any of it has no noise."""
        if self.epsilon is None or self.score_epsilon is None:
            return math.inf
        return labels * self.epsilon_per_bit(labels) + self.score_epsilon


def usable(epsilon: float, name: str = "epsilon") -> float:
    """Return the epsilon of one bit or one score; BadInput if it is out of range."""
    if not _positive(epsilon) or not LEAST <= epsilon <= MOST:
        raise BadInput(f"{name} = {epsilon!r} must be a number from {LEAST:g} to {MOST:g}")
    return float(epsilon)


def opendp() -> ModuleType:
    """Import OpenDP; MissingExtra says what to install."""
    try:
        from opendp import prelude
    except ImportError as error:
        raise MissingExtra("opendp", "privacy") from error
    # All mechanisms that OpenDP has proved but its committee has not yet vetted are "contrib".
    prelude.enable_features("contrib")
    return prelude


def within(
    epsilon: float, apart: int, make: Callable[[float], Any], parameter: float, safer: float
) -> Any:
    """Return a mechanism that costs at most epsilon for inputs that are `apart`, as OpenDP counts.

    A parameter computed with floats may exceed the budget by a rounding error. It is moved float by
    float towards `safer` until it does not.
    """
    mechanism = make(parameter)
    while mechanism.map(apart) > epsilon:
        parameter = math.nextafter(parameter, safer)
        mechanism = make(parameter)
    return mechanism


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf


def _one_of(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(f"{key} = {value!r} is unknown; {nearest(value, known)}")
