"""FedBuff: the server waits for K differences, adds their mean to the model and starts again.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022.

After K arrivals   w ← w + η (1/K) Σ_i s(τ_i) Δ_i,   Δ_i relative to the model client i started
from, s(τ) = 1 or (1 + τ)^-a with τ in versions. A partial last buffer is never applied.

With `unique=True`, a client that arrives again before the buffer is full replaces its earlier
difference. If clients have left and fewer than K members remain, the buffer is then full with one
difference from each member, and the mean is over these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import Slot
from fedraw.core.federation import Federation
from fedraw.core.robust import Robust, RobustAt, check_robust, robust_mean
from fedraw.core.settings import COUNT, Range, Settings, With, above
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.core.weighting import staleness_discount
from fedraw.errors import BadInput
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
class FedBuffState:
    """The sum over this buffer's arrivals, their clients and their staleness discounts."""

    model: Vector
    version: int
    federation: Federation
    sum: RunningSum
    clients: list[ClientId] = field(default_factory=list)
    discounts: list[float] = field(default_factory=list)
    latest: dict[ClientId, Slot] = field(default_factory=dict)  # only with `unique`
    full: bool = False
    updates: list[Slot] = field(default_factory=list)  # of this buffer; only with `robust`

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with their discounts as weights."""
        total = sum(self.discounts)
        return Contents(list(self.clients), [s / total for s in self.discounts if self.full])


@dataclass(frozen=True)
class FedBuff(Settings):
    """FedBuff; `server_lr` is η, and `staleness` and `exponent` choose s(τ).

    The robust means need all K differences in memory.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        staleness: How the weight of an update falls with its staleness τ in versions.
        exponent: The exponent a of the staleness factor (1 + τ)^-a, if staleness is "polynomial".
        unique: Whether a client that arrives again before a step replaces its earlier update.
        robust: A mean that one bad update cannot move far: "clip" shortens updates that are far
            from the model, "trim" leaves out the extreme values of each coordinate.
        robust_at: The strength of the robust mean: for "clip" a multiple of the median distance,
            for "trim" the share of values that is left out on each side.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    staleness: Literal["none", "polynomial"] = "none"
    exponent: Annotated[float, With("staleness", ("polynomial",)), Range(0, 10)] = 0.5
    unique: bool = False
    robust: Robust | None = None
    robust_at: RobustAt = None

    def validate(self) -> None:
        """Refuse a strength that the robust mean cannot have."""
        check_robust(self.robust, self.robust_at)

    @property
    def needs(self) -> Needs:
        """Clients send differences; with `unique` there are at least as many clients as slots."""
        min_clients = self.buffer if self.unique else 1
        return Needs(sends="delta", min_clients=min_clients, latest_only=self.unique)

    def start(self, setup: Setup) -> tuple[FedBuffState, Receivers]:
        """Start with an empty buffer."""
        clients = setup.clients
        if self.unique and self.buffer > len(clients):
            raise BadInput(
                f"buffer = {self.buffer} never fills with one update from each of {len(clients)} "
                f"clients; use at most {len(clients)}, or unique = false"
            )
        empty = RunningSum.zeros(setup.model.size)
        return FedBuffState(setup.model, 0, Federation.of(clients), empty), clients.clients

    def step(self, state: FedBuffState, event: Event) -> tuple[FedBuffState, Receivers]:
        """Buffer a difference; after K of them, add their mean to the model."""
        if not isinstance(event, Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        if state.full:
            self._empty(state)
        self._take_in(state, event.update)
        count = len(state.clients)
        if count >= (min(self.buffer, len(state.federation)) if self.unique else self.buffer):
            if self.robust is None:
                step = state.sum.add([], divisor=count)
            else:
                discount = np.float32(sum(state.discounts) / count)
                step = discount * robust_mean(state.updates, None, self.robust, self.robust_at)
            state.model = frozen(state.model + np.float32(self.server_lr) * step)
            state.version += 1
            state.full = True
        return state, [event.update.client]

    def _take_in(self, state: FedBuffState, update: Update) -> None:
        s = staleness_discount(self.staleness, state.version - update.start_version, self.exponent)
        if self.robust is not None:
            self._keep(state, Slot(update, s))
            return
        changes: list[Term] = [(s, update.parameters)]
        if self.unique and (earlier := state.latest.get(update.client)):
            changes.append((-earlier.coefficient, earlier.update.parameters))
            state.discounts[state.clients.index(update.client)] = s
        else:
            state.clients.append(update.client)
            state.discounts.append(s)
        if not self.unique:
            state.sum.add(changes)
            return
        state.latest[update.client] = Slot(update, s)
        slots = state.latest.values()
        state.sum.correct(changes, ((slot.coefficient, slot.update.parameters) for slot in slots))

    def _keep(self, state: FedBuffState, slot: Slot) -> None:
        """Buffer the difference itself, which a robust mean needs."""
        client = slot.update.client
        if self.unique and client in state.clients:
            place = state.clients.index(client)
            state.updates[place], state.discounts[place] = slot, slot.coefficient
        else:
            state.updates.append(slot)
            state.clients.append(client)
            state.discounts.append(slot.coefficient)

    def _empty(self, state: FedBuffState) -> None:
        state.sum.clear()
        state.clients, state.discounts, state.latest, state.full = [], [], {}, False
        state.updates = []
