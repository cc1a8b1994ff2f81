"""Residual replay: a rare client's last update keeps acting until the model has followed it.

Beyond the paper. Clients send differences. R are the clients with S_i > 2 · median S, at most K of
them, W_r = S_r / Σ_i S_i, and Σ_R W_r is at most 1/2. For each r in R that has sent an update, the
server keeps its last difference h_r and p_r, the part of h_r that the global model has realised
since. After K arrivals, with A the sum of the m differences from clients outside R and ρ = Σ W_r
over the kept ones:

    v = (1 − ρ) A/m + Σ_r W_r max(0, 1 − p_r) h_r,   w ← w + η v,
    p_r ← p_r + ⟨η v, h_r⟩ / ⟨h_r, h_r⟩

So h_r is applied once in total, and again as far as other updates undo it. Without rare clients
this is FedBuff.

The h_r of a client that leaves is kept until members need its place, because its labels would be
lost with it and it may return. `floor` > 0 keeps a force of at least floor / N on the h_r of every
member. A client that has left gets no floor: it sends no new update, so the floor would push the
model in one direction for ever. `labels` chooses what the scores S rest on, as in FedRAW. Unless
labels are declared, R is recomputed in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from fedraw.core.aggregation import RunningSum, inner
from fedraw.core.federation import Federation
from fedraw.core.rarity import rarest, weights_of_rarest
from fedraw.core.settings import at_least, between, one_of, positive, whole
from fedraw.core.types import ClientId, Label, Vector
from fedraw.core.update import Update
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
from fedraw.strategies.scoring import DeclaredScorer, EvidenceScorer, LabelEvidence, make_scorer

# A difference with a smaller squared norm has no usable direction.
TINY = 1e-12


@dataclass(eq=False)
class KeptUpdate:
    """A rare client's last update h, ⟨h, h⟩, and the part of h that has been realised."""

    update: Update
    squared: float
    progress: float = 0.0


@dataclass(eq=False)
class ReplayState:
    """The sum over the common arrivals of this round; `rare` has W_r, `kept` has h_r and p_r."""

    model: Vector
    version: int
    scorer: DeclaredScorer | EvidenceScorer
    sum: RunningSum
    rare: dict[ClientId, float] = field(default_factory=dict)
    kept: dict[ClientId, KeptUpdate] = field(default_factory=dict)
    common: list[ClientId] = field(default_factory=list)
    arrivals: int = 0
    full: bool = False
    limit: float = np.inf  # a client with a higher score is rare

    @property
    def federation(self) -> Federation:
        """The members and their declared labels."""
        return self.scorer.federation

    @property
    def contents(self) -> Contents:
        """The common clients of this round and the replayed ones, with their weights."""
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
    """Residual replay; `server_lr` is η, `classes` as in FedRAW."""

    buffer: int = 10
    threshold: float = 2.0  # a client with more than this many times the median score is rare
    mass: float = 0.5  # the largest total weight of all rare clients
    floor: float = 0.0
    server_lr: float = 1.0  # η
    labels: LabelEvidence = "declared"
    classes: tuple[Label, ...] | None = None

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        at_least("threshold", self.threshold, 1)
        positive("mass", self.mass)
        between("mass", self.mass, 0, 0.9)
        between("floor", self.floor, 0, 1)
        positive("server_lr", self.server_lr)
        one_of("labels", self.labels, get_args(LabelEvidence))

    @property
    def needs(self) -> Needs:
        """Differences."""
        return Needs(sends="delta", label_evidence=self.labels)

    def start(self, setup: Setup) -> tuple[ReplayState, Receivers]:
        """Choose the rare clients; nothing is kept yet."""
        scorer = make_scorer(self.labels, setup, self.classes, sends_delta=True)
        state = ReplayState(setup.model, 0, scorer, RunningSum.zeros(setup.model.size))
        self._find_rare(state)
        return state, setup.clients.clients

    def step(self, state: ReplayState, event: Event) -> tuple[ReplayState, Receivers]:
        """Keep or sum a difference; after K of them, make a step and track the progress."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.scorer, event)
            self._find_rare(state)
            return state, receivers
        update = event.update
        check(state, update)
        state.scorer.observe(update)
        if self.labels != "declared" and self._rarity_changed(state, update.client):
            self._find_rare(state)
        if state.full:
            self._empty(state)
        self._take_in(state, update)
        if state.arrivals == self.buffer:
            self._aggregate(state)
        return state, [update.client]

    def _rarity_changed(self, state: ReplayState, client: ClientId) -> bool:
        """Whether a round begins, or the client has become rare or common."""
        (score,) = state.scorer.scores([client])
        return state.full or (score > state.limit) != (client in state.rare)

    def _find_rare(self, state: ReplayState) -> None:
        """Choose R and W; drop the kept updates of clients that are no longer in R."""
        members = list(state.federation)
        values = np.array(state.scorer.scores(members))
        scores = dict(zip(members, values.tolist(), strict=True))
        limit = self.threshold * float(np.median(values)) if members else np.inf
        state.limit = limit
        here = [members[i] for i in rarest(values, times=self.threshold)] if members else []
        absent = [client for client in state.kept if client not in scores]
        gone_scores = state.scorer.scores(absent)
        gone = dict(zip(absent, gone_scores, strict=True))
        chosen = [*here, *(c for c in gone if gone[c] > limit)][: self.buffer]
        scores |= gone
        own = np.array([scores[client] for client in chosen])
        weights = weights_of_rarest(own, sum(scores.values()), self.mass)
        state.rare = dict(zip(chosen, weights.tolist(), strict=True))
        state.kept = {c: kept for c, kept in state.kept.items() if c in state.rare}

    def _take_in(self, state: ReplayState, update: Update) -> None:
        client, delta = update.client, update.parameters
        if client in state.rare:
            state.kept[client] = KeptUpdate(update, inner(delta, delta))
        else:
            state.sum.add([(1.0, delta)])
            state.common.append(client)
        state.arrivals += 1

    def _aggregate(self, state: ReplayState) -> None:
        step = self._move(state)
        state.model = frozen(state.model + np.float32(self.server_lr) * step)
        for kept in state.kept.values():
            if kept.squared > TINY:
                along = inner(step, kept.update.parameters) / kept.squared
                kept.progress += self.server_lr * along
        state.version += 1
        state.full = True

    def _move(self, state: ReplayState) -> Vector:
        """v: the mean of the common updates, and what remains of the kept ones."""
        count = len(state.common)
        forces = [
            (self._force(state, client), kept.update.parameters)
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
        """The coefficient of h_r in this step."""
        force = state.rare[client] * max(0.0, 1 - state.kept[client].progress)
        members = state.federation
        return max(self.floor / len(members), force) if client in members else force

    def _empty(self, state: ReplayState) -> None:
        state.sum.clear()
        state.common, state.arrivals, state.full = [], 0, False
