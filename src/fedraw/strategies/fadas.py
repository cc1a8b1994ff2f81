"""FADAS: an AMSGrad step with the mean of K differences, scaled down if one is very stale.

Wang, Wang, Lu, Chen: "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024.

After K arrivals, with D the mean of their differences, elementwise

    m ← β1 m + (1 − β1) D,   v ← β2 v + (1 − β2) D²,   v̂ ← max(v̂, v),
    w ← w + η_t m / (√v̂ + ε),   η_t = η if τ_max ≤ τ_c, otherwise η / τ_max,

where τ_max is the largest staleness in the buffer, in versions, and `tau_c` is τ_c.
`corrected=True` divides m by 1 − β1^t and v̂ by 1 − β2^t, as the authors' code does and the paper
does not.

Deviations: For τ_max > τ_c the paper, as others print it, has min(η, 1/τ_max), which changes
nothing at the authors' η until τ_max is 1000. The rule above is that of their code. The step of a
coordinate that has never moved is 0, even with ε = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedraw.core.aggregation import BLOCK, RunningSum
from fedraw.core.federation import Federation
from fedraw.core.settings import COUNT, PROBABILITY, Settings, above, at_least
from fedraw.core.types import ClientId, Vector
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)


@dataclass(eq=False)
class FADASState:
    """The sum of this buffer, the largest staleness in it, and the moments m, v and v̂."""

    model: Vector
    version: int
    federation: Federation
    sum: RunningSum
    first: Vector
    second: Vector
    largest: Vector
    clients: list[ClientId] = field(default_factory=list)
    delay: int = 0
    full: bool = False

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with equal weights."""
        count = len(self.clients)
        return Contents(list(self.clients), [1 / count] * count if self.full else [])


@dataclass(frozen=True)
class FADAS(Settings):
    """FADAS; `server_lr` is η, and `beta1`, `beta2` and `eps` are those of AMSGrad.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        beta1: The part of the first moment that a step keeps.
        beta2: The part of the second moment that a step keeps.
        eps: The number that is added to the denominator of a step.
        tau_c: The greatest staleness in a buffer at which the step keeps its full length.
        corrected: Whether the moments are corrected for their start at zero.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 0.001
    beta1: Annotated[float, PROBABILITY] = 0.9
    beta2: Annotated[float, PROBABILITY] = 0.99
    eps: Annotated[float, at_least(0)] = 1e-8
    tau_c: Annotated[int, COUNT] = 1
    corrected: bool = False

    @property
    def needs(self) -> Needs:
        """Clients send differences; with K = 1 statistics are averaged over all clients."""
        return Needs(sends="delta", statistics="newest" if self.buffer == 1 else "mean")

    def start(self, setup: Setup) -> tuple[FADASState, Receivers]:
        """Start with an empty buffer and moments of zero."""
        size = setup.model.size
        first, second, largest = (np.zeros(size, np.float32) for _ in range(3))
        federation, empty = Federation.of(setup.clients), RunningSum.zeros(size)
        state = FADASState(setup.model, 0, federation, empty, first, second, largest)
        return state, setup.clients.clients

    def step(self, state: FADASState, event: Event) -> tuple[FADASState, Receivers]:
        """Buffer a difference; after K of them, make a step of AMSGrad."""
        if not isinstance(event, Arrived):
            return state, change_members(state.federation, event)
        update = event.update
        check(state, update)
        if state.full:
            state.sum.clear()
            state.clients, state.delay, state.full = [], 0, False
        state.sum.add([(1.0, update.parameters)])
        state.clients.append(update.client)
        state.delay = max(state.delay, state.version - update.start_version)
        if len(state.clients) == self.buffer:
            state.model = frozen(self._moved(state))
            state.version += 1
            state.full = True
        return state, [update.client]

    def _moved(self, state: FADASState) -> Vector:
        """Return the model after the step, and update the moments in the same pass."""
        rate = self.server_lr / (state.delay if state.delay > self.tau_c else 1)
        scale = 1.0  # of the second moment, under the root
        if self.corrected:
            steps = state.version + 1
            rate /= 1 - self.beta1**steps
            scale = 1 - self.beta2**steps
        b1, b2, eps = np.float32(self.beta1), np.float32(self.beta2), np.float32(self.eps)
        moved = np.empty_like(state.model)
        # A huge update may overflow the second moment; its coordinate then no longer moves.
        with np.errstate(over="ignore"):
            for start in range(0, moved.size, BLOCK):
                block = slice(start, start + BLOCK)
                mean = (state.sum.total[block] / self.buffer).astype(np.float32)
                first, second = state.first[block], state.second[block]
                first *= b1
                first += (1 - b1) * mean
                second *= b2
                second += (1 - b2) * np.square(mean)
                largest = np.maximum(state.largest[block], second, out=state.largest[block])
                below = np.sqrt(largest / np.float32(scale)) + eps
                step = np.divide(first, below, out=np.zeros_like(first), where=below > 0)
                moved[block] = state.model[block] + np.float32(rate) * step
        return moved
