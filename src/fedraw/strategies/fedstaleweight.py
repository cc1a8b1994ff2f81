"""FedStaleWeight: buffered differences, weighted by how stale their clients usually are.

Ma, Tu, Chen, Reddi: "FedStaleWeight: Buffered Asynchronous Federated Learning with Fair
Aggregation via Staleness Reweighting", arXiv 2406.02877, 2024.

m_i is the mean of the last five values of client i's staleness τ_i, in versions, this arrival
included. After K arrivals   w ← w + η Σ_{i in S} m_i Δ_i / Σ_{i in S} m_i.

If all m_i are 0, as in the first step, all weights are equal. Otherwise a client with m_i = 0 has
weight 0. `offset` is added to every m_i: with memoryless arrivals E τ_i = (1/P(i) − 1)/K, so 1/K
makes frequency times mean weight the same for all clients.

Deviations: The authors' code leaves the model as it is if all m_i are 0, drops the newest instead
of the oldest value when it has five, and freezes the parameters of batch norm. In their code,
clients wait for a new version before they train again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedraw.core.aggregation import RunningSum
from fedraw.core.federation import Federation
from fedraw.core.settings import COUNT, Settings, above, at_least
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Left,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)

# The number of staleness values per client that count.
WINDOW = 5


@dataclass(eq=False)
class FedStaleWeightState:
    """The differences of this buffer, and the last staleness values of each client."""

    model: Vector
    version: int
    federation: Federation
    updates: list[Update] = field(default_factory=list)
    staleness: dict[ClientId, list[int]] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)  # after a step

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with their weights."""
        return Contents([update.client for update in self.updates], list(self.weights))


@dataclass(frozen=True)
class FedStaleWeight(Settings):
    """FedStaleWeight; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        offset: A number that is added to the mean staleness of every client, so that clients
            without staleness have a weight too.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    offset: Annotated[float, at_least(0)] = 0.0

    @property
    def needs(self) -> Needs:
        """Clients send differences; with K = 1 statistics are averaged over all clients."""
        return Needs(sends="delta", statistics="newest" if self.buffer == 1 else "mean")

    def start(self, setup: Setup) -> tuple[FedStaleWeightState, Receivers]:
        """Start with an empty buffer and no staleness values."""
        state = FedStaleWeightState(setup.model, 0, Federation.of(setup.clients))
        return state, setup.clients.clients

    def step(
        self, state: FedStaleWeightState, event: Event
    ) -> tuple[FedStaleWeightState, Receivers]:
        """Buffer a difference; after K of them, add their weighted mean to the model."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event)
            if isinstance(event, Left):
                state.staleness.pop(event.client, None)
            return state, receivers
        update = event.update
        check(state, update)
        if state.weights:
            state.updates, state.weights = [], []
        state.updates.append(update)
        stale = [*state.staleness.get(update.client, ()), state.version - update.start_version]
        state.staleness[update.client] = stale[-WINDOW:]
        if len(state.updates) == self.buffer:
            self._aggregate(state)
        return state, [update.client]

    def _aggregate(self, state: FedStaleWeightState) -> None:
        state.weights = self._weights(state)
        total = RunningSum.zeros(state.model.size)
        terms = zip(state.weights, (u.parameters for u in state.updates), strict=True)
        step = total.add(list(terms), divisor=1.0)
        state.model = frozen(state.model + np.float32(self.server_lr) * step)
        state.version += 1

    def _weights(self, state: FedStaleWeightState) -> list[float]:
        """Return m_i / Σ m_i; for a client that has left, m_i is the staleness of this update."""
        means = []
        for update in state.updates:
            values = state.staleness.get(update.client, [state.version - update.start_version])
            means.append(sum(values) / len(values) + self.offset)
        total = sum(means)
        return [mean / total if total else 1 / len(means) for mean in means]
