"""FedBuff: K differences, one averaged server step, an empty buffer.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022.

After K arrivals   w ← w + η (1/K) Σ_i s(τ_i) Δ_i,   Δ_i relative to the model client i started
from, s(τ) = 1 or (1 + τ)^-a with τ in versions. A partial last buffer is never applied.

`unique=True` keeps the latest difference of a client that comes again before the buffer is full.
If clients have left and fewer than K members remain, the buffer is then full with as many
differences as there are members, and the mean is over those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import Slot
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.core.weighting import staleness_discount
from fedraw.errors import BadInput
from fedraw.strategies.deltas import empty_sums, moved, split
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Event,
    Receivers,
    Request,
    between,
    change_members,
    check,
    frozen,
    one_of,
    positive,
    starting,
    whole,
)


@dataclass(eq=False)
class FedBuffState:
    """The sums over the arrivals so far; who they came from, and with which discount."""

    model: Vector
    version: int
    federation: Federation
    sum: RunningSum
    statistics: RunningSum
    clients: list[ClientId] = field(default_factory=list)
    discounts: list[float] = field(default_factory=list)
    latest: dict[ClientId, Slot] = field(default_factory=dict)  # only where `unique` asks for it
    full: bool = False

    @property
    def contents(self) -> Contents:
        total = sum(self.discounts)
        return Contents(list(self.clients), [s / total for s in self.discounts if self.full])


@dataclass(frozen=True)
class FedBuff:
    buffer: int = 10
    server_lr: float = 1.0
    staleness: Literal["none", "polynomial"] = "none"
    exponent: float = 0.5
    unique: bool = False
    layout: Layout | None = None

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        positive("server_lr", self.server_lr)
        one_of("staleness", self.staleness, ("none", "polynomial"))
        between("exponent", self.exponent, 0, 10)

    @property
    def request(self) -> Request:
        return Request(sends="delta", separates_statistics=self.layout is not None)

    def start(self, model: Vector, clients: LabelTable) -> tuple[FedBuffState, Receivers]:
        if self.unique and self.buffer > len(clients):
            raise BadInput(
                f"buffer = {self.buffer} never fills with one update from each of {len(clients)} "
                f"clients; use at most {len(clients)}, or unique = false"
            )
        sums = empty_sums(model, self.layout)
        return FedBuffState(starting(model), 0, Federation.of(clients), *sums), clients.clients

    def step(self, state: FedBuffState, event: Event) -> tuple[FedBuffState, Receivers]:
        if not isinstance(event, Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        if state.full:
            self._empty(state)
        self._take_in(state, event.update)
        count = len(state.clients)
        if count >= (min(self.buffer, len(state.federation)) if self.unique else self.buffer):
            step = state.sum.add([], divisor=count)
            statistics = state.statistics.add([], divisor=count)
            state.model = frozen(moved(state.model, step, statistics, self.server_lr))
            state.version += 1
            state.full = True
        return state, [event.update.client]

    def _take_in(self, state: FedBuffState, update: Update) -> None:
        s = staleness_discount(self.staleness, state.version - update.start_version, self.exponent)
        delta, statistics = split(update.vector, self.layout)
        terms: list[Term] = [(s, delta)]
        plain: list[Term] = [(1.0, statistics)]
        if self.unique and (earlier := state.latest.get(update.client)):
            old_delta, old_statistics = split(earlier.update.vector, self.layout)
            terms.append((-earlier.coefficient, old_delta))
            plain.append((-1.0, old_statistics))
            state.discounts[state.clients.index(update.client)] = s
        else:
            state.clients.append(update.client)
            state.discounts.append(s)
        if not self.unique:
            state.sum.add(terms)
            state.statistics.add(plain)
            return
        state.latest[update.client] = Slot(update, s)
        kept = [
            (slot.coefficient, split(slot.update.vector, self.layout))
            for slot in state.latest.values()
        ]
        state.sum.correct(terms, ((s, delta) for s, (delta, _) in kept))
        state.statistics.correct(plain, ((1.0, statistics) for _, (_, statistics) in kept))

    def _empty(self, state: FedBuffState) -> None:
        state.sum.clear()
        state.statistics.clear()
        state.clients, state.discounts, state.latest, state.full = [], [], {}, False
