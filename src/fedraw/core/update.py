"""A client's update: a trained model or a difference, and its batch-norm statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's reply to a model that it received.

    `vector` is what the strategy requests: the model after local training, or its difference to
    the model that the client started from. The last `statistics_size` numbers of the vector are
    batch-norm statistics, which are never differences. `parameters` and `statistics` are views of
    the two parts. `loss` is the client's mean training loss at the start model.
    """

    client: ClientId
    start_version: int
    vector: Vector
    examples: int
    loss: float | None = None
    statistics_size: int = 0
    # Whether the driver has made sure that all numbers are finite; not a part of a stored update.
    known_finite: bool = field(default=False, init=False, repr=False)

    def mark_finite(self) -> None:
        """Say that all numbers are finite, so that a strategy need not look again."""
        object.__setattr__(self, "known_finite", True)

    @property
    def parameters(self) -> Vector:
        """The trainable parameters, or their difference to the start model."""
        return self.vector[: -self.statistics_size] if self.statistics_size else self.vector

    @property
    def statistics(self) -> Vector:
        """The batch-norm statistics after local training; empty for a model without any."""
        return self.vector[self.vector.size - self.statistics_size :]


def difference(trained: Vector, start: Vector, layout: Layout | None = None) -> Vector:
    """Subtract the start model from the trained one, except for batch-norm statistics."""
    delta = trained - start
    if layout is not None:
        delta[layout.statistics] = trained[layout.statistics]
    return delta
