"""The privacy budget: the mechanism that protects a client's labels, and its epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal

from fedraw.core.settings import Range, Settings, With, above
from fedraw.errors import BadInput, MissingExtra

Mechanism = Literal["randomised-response"]
Unit = Literal["client", "label"]

# The range of epsilon for one bit or one score. Below it, floats cannot distinguish the answers
# from a fair coin. Above it, fewer than one answer in 400 million is flipped, which is practically
# no noise.
LEAST, MOST = 1e-6, 20.0


@dataclass(frozen=True)
class Privacy(Settings):
    """The mechanism by which clients report their labels and their rarity scores.

    With randomised response, each client sends its presence bits, flipped at random, at `epsilon`.
    `unit` is what epsilon protects. "client" protects the whole label set: each of the L bits gets
    epsilon / L. "label" protects the presence of one label: each bit gets epsilon, so the whole set
    costs L · epsilon. Each client also sends its score, with noise only if `score_epsilon` is set.

    Args:
        mechanism: How clients protect their labels.
        epsilon: The privacy budget of `unit`.
        unit: What epsilon protects: the whole label set of a client, or the presence of one label.
        score_epsilon: The budget of a client's rarity score; without it, the score has no noise.

    >>> Privacy("randomised-response", epsilon=2, unit="client").epsilon_per_bit(labels=10)
    0.2
    >>> Privacy("randomised-response", epsilon=2, unit="label", score_epsilon=3).client_epsilon(10)
    23.0

    """

    mechanism: Mechanism
    epsilon: Annotated[float | None, With("mechanism", ("randomised-response",)), above(0)] = None
    unit: Unit = "client"
    score_epsilon: Annotated[float | None, Range(LEAST, MOST)] = None

    def epsilon_per_bit(self, labels: int) -> float:
        """Return the epsilon of one presence bit, given the number of labels."""
        assert self.epsilon is not None
        own = self.epsilon / labels if self.unit == "client" else self.epsilon
        if not LEAST <= own <= MOST:
            raise BadInput(
                f"epsilon = {self.epsilon:g} is {own:g} for each of {labels} labels; that must be "
                f"from {LEAST:g} to {MOST:g}"
            )
        return float(own)

    def client_epsilon(self, labels: int) -> float:
        """Return the epsilon of everything that a client sends; inf if its score has no noise."""
        if self.score_epsilon is None:
            return math.inf
        return labels * self.epsilon_per_bit(labels) + self.score_epsilon


def check_epsilon(epsilon: float, name: str = "epsilon") -> float:
    """Return the epsilon of one bit or one score; raise BadInput if it is out of range."""
    if not _positive(epsilon) or not LEAST <= epsilon <= MOST:
        raise BadInput(f"{name} = {epsilon!r} must be a number from {LEAST:g} to {MOST:g}")
    return float(epsilon)


def opendp() -> ModuleType:
    """Import OpenDP; raise MissingExtra if it is not installed."""
    try:
        from opendp import prelude
    except ImportError as error:
        raise MissingExtra("opendp", "privacy") from error
    # OpenDP calls mechanisms "contrib" until its committee has vetted their proofs.
    prelude.enable_features("contrib")
    return prelude


def within_budget(
    epsilon: float, apart: int, make: Callable[[float], Any], parameter: float, safer: float
) -> Any:
    """Return a mechanism of OpenDP that costs at most epsilon for inputs at the distance `apart`.

    `make` returns the mechanism for a parameter. A parameter computed with floats may exceed the
    budget by a rounding error. The function then moves it towards `safer`, one float at a time.
    """
    mechanism = make(parameter)
    while mechanism.map(apart) > epsilon:
        parameter = math.nextafter(parameter, safer)
        mechanism = make(parameter)
    return mechanism


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf
