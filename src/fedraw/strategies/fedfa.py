"""FedFa: a sliding window of the last K models, averaged on every arrival.

Xu, Zhang, Di, Liu, Alharthi, Cao: "FedFa: A Fully Asynchronous Training Paradigm for Federated
Learning", IJCAI 2024 (the form in which clients send models).

From the K-th arrival on, every arrival sets   w ← (1/K) Σ_{j in window} w_j.

A client may hold several slots. There is no staleness weight and no server rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import SlidingWindow, Slot
from fedraw.core.federation import Federation
from fedraw.core.robust import Robust, RobustAt, check_robust, robust_mean
from fedraw.core.settings import COUNT, Settings
from fedraw.core.types import Vector
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
class FedFaState:
    """The window and the running sum of its models."""

    model: Vector
    version: int
    federation: Federation
    window: SlidingWindow
    sum: RunningSum

    @property
    def contents(self) -> Contents:
        """The clients in the window; once it is full, with equal weights."""
        clients = self.window.clients
        full = len(clients) == self.window.capacity
        return Contents(clients, [1 / len(clients)] * len(clients) if full else [])


@dataclass(frozen=True)
class FedFa(Settings):
    """FedFa with a window of models.

    Args:
        buffer: The number of last updates K whose models are averaged.
        robust: A mean that one bad update cannot move far: "clip" shortens updates that are far
            from the model, "trim" leaves out the extreme values of each coordinate.
        robust_at: The strength of the robust mean: for "clip" a multiple of the median distance,
            for "trim" the share of values that is left out on each side.

    """

    buffer: Annotated[int, COUNT] = 10
    robust: Robust | None = None
    robust_at: RobustAt = None

    def validate(self) -> None:
        """Refuse a strength that the robust mean cannot have."""
        check_robust(self.robust, self.robust_at)

    @property
    def needs(self) -> Needs:
        """Clients send models."""
        return Needs()

    def start(self, setup: Setup) -> tuple[FedFaState, Receivers]:
        """Start with an empty window."""
        window, empty = SlidingWindow(self.buffer), RunningSum.zeros(setup.model.size)
        state = FedFaState(setup.model, 0, Federation.of(setup.clients), window, empty)
        return state, setup.clients.clients

    def step(self, state: FedFaState, event: Event) -> tuple[FedFaState, Receivers]:
        """Add the update to the window; once the window is full, average it."""
        if not isinstance(event, Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        changes: list[Term] = [(1.0, event.update.vector)]
        left = state.window.add(Slot(event.update, 1.0))
        if left is not None:
            changes.append((-1.0, left.update.vector))
        slots = state.window.slots
        if len(slots) == self.buffer:
            if self.robust is None:
                mean = state.sum.mean(changes, slots, state.version)
            else:
                mean = robust_mean(slots, state.model, self.robust, self.robust_at)
            state.model = frozen(mean)
            state.version += 1
        elif self.robust is None:
            state.sum.add(changes)
        return state, [event.update.client]
