"""Residual replay: what a rare client sent last goes on acting until the model has followed it.

Beyond the paper. Clients send differences. R is the clients with S_i > 2 · median S, at most K of
them, W_r = S_r / Σ_i S_i, and Σ_R W_r at most 1/2. For each r in R that was heard the server keeps
its last difference h_r and p_r, how much of h_r the global model has realised since. After K
arrivals, A the sum of the m differences from clients outside R and ρ = Σ W_r over those kept:

    v = (1 − ρ) A/m + Σ_r W_r max(0, 1 − p_r) h_r,   w ← w + η v,
    p_r ← p_r + ⟨η v, h_r⟩ / ⟨h_r, h_r⟩

So h_r is applied once in all, and again as far as others undo it. With R empty this is FedBuff.

A client that leaves keeps its h_r until members need the place: its labels would be gone with it,
and it may be back. `floor` > 0 keeps a force of at least floor / N on the h_r of every member; a
client that has left sends no new one, so that a floor would push the model that way for ever.
`labels` says where S comes from, as for FedRAW; unless it is declared, R is looked for in every
round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from fedraw.core.aggregation import RunningSum, inner
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rarest, weights_of_rarest
from fedraw.core.types import ClientId, Label, Vector
from fedraw.core.update import Update
from fedraw.core.witness import Labels, Witness
from fedraw.strategies.deltas import empty_sums, moved, split
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Event,
    Receivers,
    Request,
    at_least,
    between,
    called,
    change_members,
    check,
    frozen,
    one_of,
    positive,
    scores_of,
    starting,
    whole,
)

# A difference with a smaller squared norm says nothing about a direction.
TINY = 1e-12


@dataclass(eq=False)
class Kept:
    """What a rare client sent last, ⟨h, h⟩, and how much of h has been realised."""

    update: Update
    squared: float
    progress: float = 0.0


@dataclass(eq=False)
class ReplayState:
    """The sum over the common arrivals of this round; `rare` has W_r, `kept` what was heard."""

    model: Vector
    version: int
    federation: Federation
    sum: RunningSum
    statistics: RunningSum
    rare: dict[ClientId, float] = field(default_factory=dict)
    kept: dict[ClientId, Kept] = field(default_factory=dict)
    common: list[ClientId] = field(default_factory=list)
    arrivals: int = 0
    full: bool = False
    limit: float = np.inf  # a score above it is rare
    witness: Witness | None = None  # unless labels are as declared

    @property
    def contents(self) -> Contents:
        """Those of this round, and those who are replayed, with the weights of their losses."""
        clients = [*self.common, *self.kept]
        if not self.full:
            return Contents(clients)
        rho = sum(self.rare[client] for client in self.kept)
        if not self.common:
            return Contents(clients, [self.rare[client] / rho for client in self.kept])
        each = (1 - rho) / len(self.common)
        return Contents(clients, [each] * len(self.common) + [self.rare[c] for c in self.kept])


@dataclass(frozen=True)
class Replay:
    buffer: int = 10
    threshold: float = 2.0  # rare is who has more than so many times the median score
    mass: float = 0.5  # at most this much for all rare clients together
    floor: float = 0.0
    server_lr: float = 1.0  # η
    labels: Labels = "declared"
    layout: Layout | None = None
    classes: tuple[Label, ...] | None = None

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        at_least("threshold", self.threshold, 1)
        positive("mass", self.mass)
        between("mass", self.mass, 0, 0.9)
        between("floor", self.floor, 0, 1)
        positive("server_lr", self.server_lr)
        one_of("labels", self.labels, get_args(Labels))

    @property
    def request(self) -> Request:
        return Request(sends="delta", separates_statistics=self.layout is not None)

    def start(self, model: Vector, clients: LabelTable) -> tuple[ReplayState, Receivers]:
        federation, sums = Federation.of(clients), empty_sums(model, self.layout)
        state = ReplayState(starting(model), 0, federation, *sums)
        state.witness = called(self.labels, self.classes, state.model, self.layout, self.request)
        self._find_rare(state)
        return state, clients.clients

    def step(self, state: ReplayState, event: Event) -> tuple[ReplayState, Receivers]:
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event, state.witness)
            self._find_rare(state)
            return state, receivers
        check(state, event.update)
        if state.witness is not None and self.layout is not None:
            state.witness.hear(event.update, self.layout, state.federation, sends_delta=True)
            (score,) = state.witness.scores([event.update.client], state.federation)
            if state.full or (score > state.limit) != (event.update.client in state.rare):
                self._find_rare(state)
        if state.full:
            self._empty(state)
        self._take_in(state, event.update)
        if state.arrivals == self.buffer:
            self._aggregate(state)
        return state, [event.update.client]

    def _find_rare(self, state: ReplayState) -> None:
        """R and W; what is kept of clients that are no longer in R is dropped."""
        members = list(state.federation)
        values = np.array(scores_of(state.federation, state.witness, members))
        scores = dict(zip(members, values.tolist(), strict=True))
        limit = self.threshold * float(np.median(values)) if members else np.inf
        state.limit = limit
        here = [members[i] for i in rarest(values, times=self.threshold)] if members else []
        absent = [client for client in state.kept if client not in scores]
        gone_scores = scores_of(state.federation, state.witness, absent)
        gone = dict(zip(absent, gone_scores, strict=True))
        chosen = [*here, *(c for c in gone if gone[c] > limit)][: self.buffer]
        scores |= gone
        own = np.array([scores[client] for client in chosen])
        weights = weights_of_rarest(own, sum(scores.values()), self.mass)
        state.rare = dict(zip(chosen, weights.tolist(), strict=True))
        state.kept = {c: kept for c, kept in state.kept.items() if c in state.rare}

    def _take_in(self, state: ReplayState, update: Update) -> None:
        client, (delta, statistics) = update.client, split(update.vector, self.layout)
        if client in state.rare:
            state.kept[client] = Kept(update, inner(delta, delta))
        else:
            state.sum.add([(1.0, delta)])
            state.common.append(client)
        state.statistics.add([(1.0, statistics)])
        state.arrivals += 1

    def _aggregate(self, state: ReplayState) -> None:
        step = self._move(state)
        statistics = state.statistics.add([], divisor=self.buffer)
        state.model = frozen(moved(state.model, step, statistics, self.server_lr))
        for kept in state.kept.values():
            if kept.squared > TINY:
                along = inner(step, self._difference(kept)) / kept.squared
                kept.progress += self.server_lr * along
        state.version += 1
        state.full = True

    def _move(self, state: ReplayState) -> Vector:
        """v: the mean of those outside R, and what is left of what the others sent."""
        count = len(state.common)
        forces = [
            (self._force(state, client), self._difference(kept))
            for client, kept in state.kept.items()
            if kept.squared > TINY
        ]
        rho = sum(state.rare[client] for client in state.kept)
        if not count:
            return state.sum.add(forces, divisor=1.0)
        # Σ_j Δ_j + Σ_r f_r m/(1 − ρ) h_r over m/(1 − ρ): without R it is FedBuff's, bit for bit.
        divisor = count / (1 - rho)
        return state.sum.add([(force * divisor, h) for force, h in forces], divisor=divisor)

    def _force(self, state: ReplayState, client: ClientId) -> float:
        """How much of h_r is applied now."""
        force = state.rare[client] * max(0.0, 1 - state.kept[client].progress)
        members = state.federation
        return max(self.floor / len(members), force) if client in members else force

    def _difference(self, kept: Kept) -> Vector:
        return split(kept.update.vector, self.layout)[0]

    def _empty(self, state: ReplayState) -> None:
        state.sum.clear()
        state.statistics.clear()
        state.common, state.arrivals, state.full = [], 0, False
