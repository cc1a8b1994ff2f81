"""CA2FL: buffered differences, calibrated by a cache of every client's last one.

Wang, Cao, Wu, Chen, Chen: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024.

After K arrivals   v = h + (1/K) Σ_i (Δ_i − h_i),   w ← w + η v,
then h_i ← the newest Δ_i of those heard, and h = (1/N) Σ_i h_i over all N clients, of whom those
never heard count as zero. The h in v is the one of the previous step.

A client that comes twice in one buffer is measured against its h_i at the start of the round both
times (`refresh="round-start"`), or the second time against its first difference ("arrival").
A client that leaves takes its h_i with it; N is the number of members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.strategies.deltas import empty_sums, moved, split
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Event,
    Left,
    Receivers,
    Request,
    change_members,
    check,
    frozen,
    one_of,
    positive,
    starting,
    whole,
)


@dataclass(eq=False)
class CA2FLState:
    """`residuals` = Σ (Δ_i − h_i) of this buffer, `cache_sum` = Σ_i h_i, `newest` the next h_i."""

    model: Vector
    version: int
    federation: Federation
    residuals: RunningSum
    statistics: RunningSum
    cache_sum: RunningSum
    cache: dict[ClientId, Vector] = field(default_factory=dict)
    newest: dict[ClientId, Vector] = field(default_factory=dict)
    clients: list[ClientId] = field(default_factory=list)
    full: bool = False

    @property
    def contents(self) -> Contents:
        count = len(self.clients)
        return Contents(list(self.clients), [1 / count] * count if self.full else [])


@dataclass(frozen=True)
class CA2FL:
    influence: ClassVar = "cache"  # everyone heard so far is part of every step: metrics.influence

    buffer: int = 10
    server_lr: float = 1.0
    refresh: Literal["round-start", "arrival"] = "round-start"
    layout: Layout | None = None

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        positive("server_lr", self.server_lr)
        one_of("refresh", self.refresh, ("round-start", "arrival"))

    @property
    def request(self) -> Request:
        return Request(sends="delta", separates_statistics=self.layout is not None)

    def start(self, model: Vector, clients: LabelTable) -> tuple[CA2FLState, Receivers]:
        residuals, statistics = empty_sums(model, self.layout)
        cache_sum, _ = empty_sums(model, self.layout)
        federation = Federation.of(clients)
        state = CA2FLState(starting(model), 0, federation, residuals, statistics, cache_sum)
        return state, clients.clients

    def step(self, state: CA2FLState, event: Event) -> tuple[CA2FLState, Receivers]:
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
        client = update.client
        delta, statistics = split(update.vector, self.layout)
        cached = state.cache.get(client)
        if self.refresh == "arrival":
            cached = state.newest.get(client, cached)
        terms: list[Term] = [(1.0, delta)]
        if cached is not None:
            terms.append((-1.0, cached))
        state.residuals.add(terms)
        state.statistics.add([(1.0, statistics)])
        state.newest[client] = delta
        state.clients.append(client)

    def _aggregate(self, state: CA2FLState) -> None:
        mean_cache = state.cache_sum.total / max(len(state.federation), 1)
        step: Vector = (mean_cache + state.residuals.total / self.buffer).astype(np.float32)
        statistics = state.statistics.add([], divisor=self.buffer)
        state.model = frozen(moved(state.model, step, statistics, self.server_lr))
        state.version += 1
        for client, delta in state.newest.items():
            cached = state.cache.get(client)
            state.cache_sum.add([(1.0, delta)] + ([(-1.0, cached)] if cached is not None else []))
            state.cache[client] = delta
        if state.version % len(state.cache) == 0:  # now and then anew: rounding errors would stay
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
        state.statistics.clear()
        state.newest, state.clients, state.full = {}, [], False
