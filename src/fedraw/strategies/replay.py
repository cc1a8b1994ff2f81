"""Residual replay: a client's last update is reapplied until the model has realised it.

This method is not in the paper. Clients send differences. R is the set of at most K clients whose
last update is kept, and W_r are their weights, with Σ_R W_r at most 1/2. For each r in R that has
sent an update, the server keeps its last difference h_r and p_r, the part of h_r that the global
model has realised since. After K arrivals, with A = Σ x_i Δ_i and B = Σ x_i over the arrivals from
clients outside R and ρ = Σ W_r over the kept ones:

    v = (1 − ρ) A/B + Σ_r W_r max(0, 1 − p_r) h_r,   w ← w + η v,
    p_r ← p_r + ⟨η v, h_r⟩ / ⟨h_r, h_r⟩

So h_r is applied once in total, and again to the extent that other updates undo it. Without clients
in R and with all x_i = 1 this is FedBuff.

`select = "rarity"`: R are the clients with S_i > 2 · median S, W_r = S_r / Σ_i S_i, and x_i = 1.

`select = "debt"`: each client has the target weight f_i and the share a_i of all arrivals. R are
the clients with the largest debts f_i − a_i above zero, W_r = f_r, and x_i = f_i / a_i, so that
every client's weight is about f_i however often it arrives. `target` chooses the target weight:

    "rarity"    f_i = S_i / Σ S
    "samples"   f_i = n_i / Σ n, which needs no labels
    "mix"       f_i = ½ S_i / Σ S + ½ n_i / Σ n

n_i is the number of samples in the client's last update; before its first update it is the mean of
the others. R and x are recomputed when a round begins. Ties between debts keep the order of the
clients.

The h_r of a client that leaves is kept until members need its place, because its labels would be
lost with it and it may return. `floor` > 0 keeps the coefficient of every member's h_r at floor / N
or above. A client that has left gets no floor: it sends no new update, so the floor would push the
model in one direction for ever. `release = False` is an ablation: h_r has its full weight W_r until
the next update of r, as in CA2FL. `labels` chooses the basis of the scores S, as in FedRAW. Unless
labels are declared, R is recomputed in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from fedraw.core.aggregation import RunningSum, inner
from fedraw.core.federation import Federation
from fedraw.core.rarity import rarest, weights_of_rarest
from fedraw.core.settings import COUNT, DERIVED, SHARE, Range, Settings, With, above, at_least
from fedraw.core.types import ClientId, Floats, Label, Vector
from fedraw.core.update import Update
from fedraw.strategies.participation import Participation
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
from fedraw.strategies.scoring import DeclaredScorer, EvidenceScorer, LabelEvidence, make_scorer

# Whose updates are kept, and how a client's target weight is computed.
Select = Literal["rarity", "debt"]
Target = Literal["rarity", "samples", "mix"]

# A difference with a smaller squared norm has no usable direction.
TINY = 1e-12
# A smaller debt is a rounding error.
NO_DEBT = 1e-9


@dataclass(eq=False)
class KeptUpdate:
    """A client's last update h, ⟨h, h⟩, and the part of h that has been realised."""

    update: Update
    squared: float
    progress: float = 0.0


@dataclass(eq=False)
class ReplayState:
    """The sum over this round's arrivals outside R; `rare` has W_r, `kept` has h_r and p_r.

    `common` are the clients of these arrivals and `shares` their x_i. `factor` has x_i for every
    member and is empty if all are 1. `participation` and `samples` are used for debts only.
    """

    model: Vector
    version: int
    scorer: DeclaredScorer | EvidenceScorer
    sum: RunningSum
    rare: dict[ClientId, float] = field(default_factory=dict)
    kept: dict[ClientId, KeptUpdate] = field(default_factory=dict)
    common: list[ClientId] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    arrivals: int = 0
    full: bool = False
    limit: float = np.inf  # a client with a higher score is rare
    factor: dict[ClientId, float] = field(default_factory=dict)
    participation: Participation = field(default_factory=Participation)
    samples: dict[ClientId, int] = field(default_factory=dict)

    @property
    def federation(self) -> Federation:
        """The members and their declared labels."""
        return self.scorer.federation

    @property
    def contents(self) -> Contents:
        """The clients of this round outside R, then those in R, with their weights."""
        clients = [*self.common, *self.kept]
        if not self.full:
            return Contents(clients)
        rho = sum(self.rare[client] for client in self.kept)
        if not self.common:
            return Contents(clients, [self.rare[client] / rho for client in self.kept])
        each = (1 - rho) / sum(self.shares)
        common = [each * share for share in self.shares]
        return Contents(clients, common + [self.rare[client] for client in self.kept])


@dataclass(frozen=True)
class Replay(Settings):
    """Residual replay; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server, and the most clients whose last
            update is kept.
        threshold: The multiple of the median rarity score above which a client's update is kept.
        mass: The most weight that all kept updates have together.
        floor: The least weight of a kept update, as a multiple of 1/N.
        server_lr: The server rate: the factor by which a step moves the model.
        labels: What rarity scores are computed from: the declared label counts, these counts
            checked against the updates, or the updates alone.
        classes: The labels of the model's outputs, by default those of the driver; they matter only
            if labels are checked or inferred.
        select: Whose last update is kept: clients with a high rarity score, or clients that arrive
            less often than their target weight asks for.
        target: The target weights with select = "debt": by rarity score, by samples, or half by
            each.
        release: Whether an update is no longer repeated once the model has realised it; false is an
            ablation.

    """

    buffer: Annotated[int, COUNT] = 10
    threshold: Annotated[float, With("select", ("rarity",)), at_least(1)] = 2.0
    mass: Annotated[float, Range(0, 0.9, open_low=True)] = 0.5
    floor: Annotated[float, With("release", (True,)), SHARE] = 0.0
    server_lr: Annotated[float, above(0)] = 1.0  # η
    labels: Annotated[LabelEvidence, With("target", ("rarity", "mix"))] = "declared"
    classes: Annotated[tuple[Label, ...] | None, DERIVED] = None
    select: Select = "rarity"
    target: Annotated[Target, With("select", ("debt",))] = "rarity"
    release: bool = True

    @property
    def needs(self) -> Needs:
        """Clients send differences, and labels matter unless target weights use samples alone."""
        evidence = None if self.target == "samples" else self.labels
        return Needs(sends="delta", label_evidence=evidence)

    def start(self, setup: Setup) -> tuple[ReplayState, Receivers]:
        """Choose the rare clients; nothing is kept yet."""
        scorer = make_scorer(self.labels, setup, self.classes, sends_delta=True)
        state = ReplayState(setup.model, 0, scorer, RunningSum.zeros(setup.model.size))
        self._find_rare(state)
        return state, setup.clients.clients

    def step(self, state: ReplayState, event: Event) -> tuple[ReplayState, Receivers]:
        """Keep or sum a difference; after K of them, make a step and update p."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.scorer, event)
            if isinstance(event, Joined):
                state.participation.join(event.client)
            elif isinstance(event, Left):
                state.participation.leave(event.client)
            self._find_rare(state)
            return state, receivers
        update = event.update
        check(state, update)
        state.scorer.observe(update)
        if self._choice_changed(state, update.client):
            self._find_rare(state)
        if state.full:
            self._empty(state)
        self._take_in(state, update)
        if state.arrivals == self.buffer:
            self._aggregate(state)
        return state, [update.client]

    def _choice_changed(self, state: ReplayState, client: ClientId) -> bool:
        """Return whether a round begins, or the client has become rare or common."""
        if self.select == "debt":
            return state.full
        if self.labels == "declared":
            return False
        (score,) = state.scorer.scores([client])
        return state.full or (score > state.limit) != (client in state.rare)

    def _find_rare(self, state: ReplayState) -> None:
        """Choose R and W; drop the kept updates of clients that are no longer in R."""
        absent = [client for client in state.kept if client not in state.federation]
        clients = [*state.federation, *absent]
        if self.select == "debt":
            values, chosen = self._largest_debts(state, clients)
        else:
            values, chosen = self._rarest(state, clients)
        chosen = chosen[: self.buffer]
        weights = weights_of_rarest(values[chosen], sum(values.tolist()), self.mass)
        state.rare = dict(zip([clients[i] for i in chosen], weights.tolist(), strict=True))
        state.kept = {c: kept for c, kept in state.kept.items() if c in state.rare}

    def _rarest(self, state: ReplayState, clients: list[ClientId]) -> tuple[Floats, list[int]]:
        """Return the score of each client, and the positions of the rare ones, members first."""
        here = len(state.federation)
        values = np.array(state.scorer.scores(clients))
        state.limit = self.threshold * float(np.median(values[:here])) if here else np.inf
        members = rarest(values[:here], times=self.threshold).tolist() if here else []
        return values, [*members, *(here + np.flatnonzero(values[here:] > state.limit))]

    def _largest_debts(
        self, state: ReplayState, clients: list[ClientId]
    ) -> tuple[Floats, list[int]]:
        """Return f_i of each client, and the positions of those in debt, members first."""
        here = len(state.federation)
        wanted = self._wanted(state, clients)
        seen = np.array([state.participation.share(client, here) for client in clients[:here]])
        debt = wanted[:here] - seen
        state.factor = dict(zip(clients, (wanted[:here] / seen).tolist(), strict=False))
        order = np.argsort(-debt, kind="stable")
        return wanted, [*order[debt[order] > NO_DEBT].tolist(), *range(here, len(clients))]

    def _wanted(self, state: ReplayState, clients: list[ClientId]) -> Floats:
        """Return f_i, the target weights, which sum to one."""
        found = np.zeros(len(clients))
        if self.target != "samples":
            scores = np.array(state.scorer.scores(clients))
            found += scores / scores.sum()
        if self.target != "rarity":
            known = {c: state.samples[c] for c in clients if c in state.samples}
            usual = sum(known.values()) / len(known) if known else 1.0
            samples = np.array([known.get(client, usual) for client in clients])
            found += samples / samples.sum()
        return np.asarray(found / 2 if self.target == "mix" else found, np.float64)

    def _take_in(self, state: ReplayState, update: Update) -> None:
        client, delta = update.client, update.parameters
        if client in state.rare:
            state.kept[client] = KeptUpdate(update, inner(delta, delta))
        else:
            share = state.factor.get(client, 1.0)
            state.sum.add([(share, delta)])
            state.common.append(client)
            state.shares.append(share)
        state.arrivals += 1
        if self.select == "debt":
            state.participation.count(client)
            state.samples[client] = update.examples

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
        """Return v: the mean of the updates outside R plus what remains of the kept ones."""
        count = sum(state.shares)
        forces = [
            (self._force(state, client), kept.update.parameters)
            for client, kept in state.kept.items()
            if kept.squared > TINY
        ]
        rho = sum(state.rare[client] for client in state.kept)
        if not count:
            return state.sum.add(forces, divisor=1.0)
        # A + Σ_r force_r B/(1 − ρ) h_r over B/(1 − ρ): without R it is FedBuff's, bit for bit.
        divisor = count / (1 - rho)
        return state.sum.add([(force * divisor, h) for force, h in forces], divisor=divisor)

    def _force(self, state: ReplayState, client: ClientId) -> float:
        """Return the coefficient of h_r in this step."""
        if not self.release:
            return state.rare[client]
        force = state.rare[client] * max(0.0, 1 - state.kept[client].progress)
        members = state.federation
        return max(self.floor / len(members), force) if client in members else force

    def _empty(self, state: ReplayState) -> None:
        state.sum.clear()
        state.common, state.shares, state.arrivals, state.full = [], [], 0, False
