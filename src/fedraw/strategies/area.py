"""AREA: the model is the mean of every client's last model.

Iakovidou, Kim: "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under
Arbitrary Delays", arXiv 2405.10123, 2025.

The server keeps the last model y_i of every client; at first y_i = w⁰. Client i sends its trained
model w_i, and the server sets y_i ← w_i. After K arrivals the server sets w ← (1/N) Σ_i y_i. There
is no server rate.

A newcomer has y_i = w, so it leaves the mean as it is. If a client leaves, y_i is dropped from the
mean at the next step.

Deviations: The authors' clients keep y_i and send w_i − y_i, which gives the same model. A server
could not see whether a site has lost y_i, which would make w wrong for good. The authors scale the
local rate by n_i/n, and hand a client the model before the step that its own arrival causes. Here
all clients have the same weight, and the client gets the model after the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.federation import Federation
from fedraw.core.settings import COUNT, Settings
from fedraw.core.types import ClientId, Vector
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Joined,
    Left,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)


@dataclass(eq=False)
class AREAState:
    """`sum` = Σ y_i over N = `places` clients; `memory` has each y_i."""

    model: Vector
    version: int
    federation: Federation
    sum: RunningSum
    places: int
    memory: dict[ClientId, Vector] = field(default_factory=dict)
    clients: list[ClientId] = field(default_factory=list)
    full: bool = False

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with equal weights."""
        count = len(self.clients)
        return Contents(list(self.clients), [1 / count] * count if self.full else [])

    def remembered(self) -> list[Term]:
        """Return the terms of `sum`."""
        return [(1.0, model) for model in self.memory.values()]


@dataclass(frozen=True)
class AREA(Settings):
    """AREA; the server keeps each client's last model.

    Args:
        buffer: The number of updates K in a step of the server.

    """

    buffer: Annotated[int, COUNT] = 10

    @property
    def needs(self) -> Needs:
        """Clients send models."""
        return Needs(influence="cache")

    def start(self, setup: Setup) -> tuple[AREAState, Receivers]:
        """Start with y_i = w⁰ for every client."""
        total = RunningSum.zeros(setup.model.size)
        clients = setup.clients.clients
        total.add([(float(len(clients)), setup.model)])
        state = AREAState(setup.model, 0, Federation.of(setup.clients), total, len(clients))
        state.memory = dict.fromkeys(clients, setup.model)
        return state, clients

    def step(self, state: AREAState, event: Event) -> tuple[AREAState, Receivers]:
        """Replace y_i; after K arrivals, the model becomes the mean of all y_i."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event)
            self._change_places(state, event)
            return state, receivers
        check(state, event.update)
        if state.full:
            state.clients, state.full = [], False
        client, vector = event.update.client, event.update.vector
        changes: list[Term] = [(1.0, vector), (-1.0, state.memory[client])]
        state.memory[client] = vector
        state.sum.correct(changes, state.remembered())
        state.clients.append(client)
        if len(state.clients) == self.buffer:
            self._aggregate(state)
        return state, [client]

    def _aggregate(self, state: AREAState) -> None:
        state.version += 1
        # The sum is recomputed regularly, so rounding errors do not build up.
        if state.memory and state.version % len(state.memory) == 0:
            state.sum.recompute(state.remembered())
        state.model = frozen(state.sum.add([], divisor=state.places))
        state.full = True

    def _change_places(self, state: AREAState, event: Event) -> None:
        if isinstance(event, Joined):
            state.sum.add([(1.0, state.model)])
            state.places += 1
            state.memory[event.client] = state.model
        elif isinstance(event, Left):
            gone = state.memory.pop(event.client)
            state.sum.correct([(-1.0, gone)], state.remembered())
            state.places -= 1
