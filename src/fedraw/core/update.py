"""What a client sends, and how a difference of two models is written."""

from __future__ import annotations

from dataclasses import dataclass

from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's answer to a model it was handed.

    `vector` is what the strategy asked for: the model after local training, or its difference to
    the model the client started from. `loss` is the mean loss at that start model.
    """

    client: ClientId
    start_version: int
    vector: Vector
    examples: int
    loss: float | None = None


def difference(trained: Vector, start: Vector, layout: Layout | None = None) -> Vector:
    """What training changed; statistics go as they are, since a server averages them plainly."""
    delta = trained - start
    if layout is not None:
        delta[layout.statistics] = trained[layout.statistics]
    return delta
