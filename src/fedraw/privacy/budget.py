"""What is told of a client's labels, by which mechanism, at which budget, in which unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedraw.errors import BadInput, nearest

Mechanism = Literal["randomised-response", "secure-sum"]
Unit = Literal["client", "label"]

# Of one bit or one score. Below, a float no longer tells the answer's law from a coin's; above, a
# lie is rarer than one in 400 million, and the noise is there in name only.
LEAST, MOST = 1e-6, 20.0


@dataclass(frozen=True)
class Privacy:
    """How clients tell how common their labels are, and how rare that makes them.

    randomised-response  each client sends its presence bits, flipped at random, at `epsilon`
    secure-sum           the server learns the exact sum of the bits and no single one

    `unit` says what epsilon protects: "client" the whole label set (L bits at epsilon / L each),
    "label" one label more or less (each bit at epsilon, so the whole set at L · epsilon). The score
    is one number more; without `score_epsilon` it goes out as it is.

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
        """What one presence bit may cost where there are so many labels."""
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
        """Epsilon of all that one client tells, bits and score; inf if anything goes unnoised."""
        if self.epsilon is None or self.score_epsilon is None:
            return math.inf
        return labels * self.epsilon_per_bit(labels) + self.score_epsilon


def usable(epsilon: float, name: str = "epsilon") -> float:
    """The budget of one bit or one score, refused where it means nothing."""
    if not _positive(epsilon) or not LEAST <= epsilon <= MOST:
        raise BadInput(f"{name} = {epsilon!r} must be a number from {LEAST:g} to {MOST:g}")
    return float(epsilon)


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf


def _one_of(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(f"{key} = {value!r} is unknown; {nearest(value, known)}")
