"""CA2FL: buffered differences, calibrated by a cache of every client's last difference.

Wang, Cao, Wu, Chen, Chen: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024.

After K arrivals   v = h + (1/K) Σ_i (Δ_i − h_i),   w ← w + η v,
then h_i ← the newest Δ_i of each client in the buffer, and h = (1/N) Σ_i h_i over all N clients,
where h_i = 0 for a client without updates. The h in v is that of the previous step.

If a client arrives twice in one buffer, both differences are compared with its h_i from the start
of the round (`refresh="round-start"`), or the second one with the first ("arrival"). The h_i of a
client that leaves is dropped. N is the number of members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.federation import Federation
from fedraw.core.settings import one_of, positive, whole
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


@dataclass(eq=False)
class CA2FLState:
    """`residuals` = Σ (Δ_i − h_i) of this buffer, `cache_sum` = Σ_i h_i, `newest` the next h_i."""

    model: Vector
    version: int
    federation: Federation
    residuals: RunningSum
    cache_sum: RunningSum
    cache: dict[ClientId, Vector] = field(default_factory=dict)
    newest: dict[ClientId, Vector] = field(default_factory=dict)
    clients: list[ClientId] = field(default_factory=list)
    full: bool = False

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with equal weights."""
        count = len(self.clients)
        return Contents(list(self.clients), [1 / count] * count if self.full else [])


@dataclass(frozen=True)
class CA2FL:
    """CA2FL; `server_lr` is η, and `refresh` says when h_i takes the newest difference."""

    buffer: int = 10
    server_lr: float = 1.0
    refresh: Literal["round-start", "arrival"] = "round-start"

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        positive("server_lr", self.server_lr)
        one_of("refresh", self.refresh, ("round-start", "arrival"))

    @property
    def needs(self) -> Needs:
        """Differences; the weights in the log come from the cache."""
        return Needs(sends="delta", influence="cache")

    def start(self, setup: Setup) -> tuple[CA2FLState, Receivers]:
        """Start with an empty buffer and an empty cache."""
        residuals, cache_sum = (RunningSum.zeros(setup.model.size) for _ in range(2))
        federation = Federation.of(setup.clients)
        state = CA2FLState(setup.model, 0, federation, residuals, cache_sum)
        return state, setup.clients.clients

    def step(self, state: CA2FLState, event: Event) -> tuple[CA2FLState, Receivers]:
        """Buffer a difference; after K of them, make a calibrated server step."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event)
            if isinstance(event, Left):
                self._forget(state, event.client)
            return state, receivers
        check(state, event.update)
        if state.full:
            self._empty(state)
        self._take_in(state, event.update)
        if len(state.clients) == self.buffer:
            self._aggregate(state)
        return state, [event.update.client]

    def _take_in(self, state: CA2FLState, update: Update) -> None:
        client, delta = update.client, update.parameters
        cached = state.cache.get(client)
        if self.refresh == "arrival":
            cached = state.newest.get(client, cached)
        terms: list[Term] = [(1.0, delta)]
        if cached is not None:
            terms.append((-1.0, cached))
        state.residuals.add(terms)
        state.newest[client] = delta
        state.clients.append(client)

    def _aggregate(self, state: CA2FLState) -> None:
        mean_cache = state.cache_sum.total / max(len(state.federation), 1)
        step: Vector = (mean_cache + state.residuals.total / self.buffer).astype(np.float32)
        state.model = frozen(state.model + np.float32(self.server_lr) * step)
        state.version += 1
        for client, delta in state.newest.items():
            cached = state.cache.get(client)
            state.cache_sum.add([(1.0, delta)] + ([(-1.0, cached)] if cached is not None else []))
            state.cache[client] = delta
        if state.version % len(state.cache) == 0:  # recomputed, so that rounding errors do not stay
            state.cache_sum.clear()
            state.cache_sum.add([(1.0, delta) for delta in state.cache.values()])
        state.full = True

    def _forget(self, state: CA2FLState, client: ClientId) -> None:
        state.newest.pop(client, None)
        cached = state.cache.pop(client, None)
        if cached is not None:
            state.cache_sum.add([(-1.0, cached)])

    def _empty(self, state: CA2FLState) -> None:
        state.residuals.clear()
        state.newest, state.clients, state.full = {}, [], False
