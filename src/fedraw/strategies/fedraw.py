"""FedRAW: one buffer slot per client, weighted by rarity.

Bajpai, Saxena, Lalanda, Vega: "FedRAW: Preserving Rare-Label Influence in Asynchronous Federated
Learning".

On the arrival of θ_i, a client that is in the buffer B is replaced in place; otherwise it is
appended, and the oldest slot is evicted if the buffer was full. Whenever |B| = K,

    θ ← Σ_{j∈B} w_j θ_j,   w_j = S_j / Σ_{k∈B} S_k.

`dedup=False` is the paper's WeightOnly (a client with two slots counts twice), and
`weighting="uniform"` its DedupOnly. The caps on w are the paper's two defences against false label
claims. Beyond the paper, `labels` chooses the basis of the scores S: the declared label counts,
these counts checked against the updates, or the updates alone (see `strategies.scoring`).

In the paper no client leaves. Here the slot of a client that has left is evicted by age like any
other. If fewer than K members remain, that would never happen, because they all have slots already.
The slot is then evicted once K updates of others have arrived since the client left; a client that
joins again before that keeps its slot. For the first aggregation the buffer counts as full with
min(K, number of members) slots, and from then on every arrival aggregates the buffer as it is.
As long as no client leaves, this is the paper's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import OneSlotBuffer, SlidingWindow, Slot
from fedraw.core.federation import Federation
from fedraw.core.robust import Robust, RobustAt, check_robust, robust_mean
from fedraw.core.settings import COUNT, DERIVED, Settings, With
from fedraw.core.types import ClientId, Label, Vector
from fedraw.core.update import Update
from fedraw.core.weighting import Cap, capped_scores, check_cap
from fedraw.errors import BadInput
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Joined,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)
from fedraw.strategies.scoring import DeclaredScorer, EvidenceScorer, LabelEvidence, make_scorer


@dataclass(eq=False)
class FedRAWState:
    """The buffer, and the running sum Σ_j a_j θ_j in which slot j has its capped score a_j."""

    model: Vector
    version: int
    scorer: DeclaredScorer | EvidenceScorer
    buffer: OneSlotBuffer | SlidingWindow
    weighted_sum: RunningSum
    full: bool = False  # whether the buffer has been full: from then on, every arrival aggregates
    # For each client that has left but is in the buffer: how many updates have arrived since.
    arrivals_since_left: dict[ClientId, int] = field(default_factory=dict)

    @property
    def federation(self) -> Federation:
        """The members and their declared labels."""
        return self.scorer.federation

    @property
    def contents(self) -> Contents:
        """The clients in the buffer and their weights in the last aggregation."""
        clients = self.buffer.clients
        if not self.full:
            return Contents(clients)
        coefficients = [slot.coefficient for slot in self.buffer.slots]
        total = sum(coefficients)
        return Contents(clients, [coefficient / total for coefficient in coefficients])


@dataclass(frozen=True)
class FedRAW(Settings):
    """FedRAW and its ablations.

    Args:
        buffer: The number of updates K that the buffer holds.
        dedup: Whether a client has at most one slot in the buffer.
        weighting: Whether slots are weighted by rarity score, or all equally.
        cap: How the weight of one slot is bounded: not at all, by lowering it once, or by lowering
            all weights until none is above the bound.
        cap_at: The bound on the weight of one slot, if there is a cap.
        labels: What rarity scores are computed from: the declared label counts, these counts
            checked against the updates, or the updates alone.
        classes: The labels of the model's outputs, by default those of the driver; they matter only
            if labels are checked or inferred.
        robust: A mean that one bad update cannot move far: "clip" shortens updates that are far
            from the model, "trim" leaves out the extreme values of each coordinate.
        robust_at: The strength of the robust mean: for "clip" a multiple of the median distance,
            for "trim" the share of values that is left out on each side.

    """

    buffer: Annotated[int, COUNT] = 10
    dedup: bool = True
    weighting: Literal["rarity", "uniform"] = "rarity"
    cap: Cap = "none"
    cap_at: Annotated[float, With("cap", ("naive", "water-filling"))] = 1.0
    labels: LabelEvidence = "declared"
    classes: Annotated[tuple[Label, ...] | None, DERIVED] = None
    robust: Robust | None = None
    robust_at: RobustAt = None

    def validate(self) -> None:
        """Refuse a cap that caps nothing: somebody relies on it."""
        check_robust(self.robust, self.robust_at)
        if self.cap == "none":
            return
        check_cap(self.cap, self.cap_at, self.buffer)
        if self.cap_at == 1:
            self.refuse(
                "cap_at",
                f"has no effect with cap = {self.cap!r}; set it to the largest weight of one slot, "
                "for example 0.3",
            )
        if self.weighting == "uniform":
            self.refuse(
                "cap", "has no effect on uniform weights; leave it out, or use weighting = 'rarity'"
            )

    @property
    def needs(self) -> Needs:
        """Clients send models; with `dedup` there are at least as many clients as slots."""
        min_clients = self.buffer if self.dedup else 1
        by_labels = self.weighting != "uniform" or self.labels != "declared"
        return Needs(min_clients=min_clients, label_evidence=self.labels if by_labels else None)

    def start(self, setup: Setup) -> tuple[FedRAWState, Receivers]:
        """Start with an empty buffer."""
        clients = setup.clients
        if self.dedup and self.buffer > len(clients):
            raise BadInput(
                f"buffer = {self.buffer} never fills with one slot for each of {len(clients)} "
                f"clients; use at most {len(clients)}, or dedup = false"
            )
        scorer = make_scorer(self.labels, setup, self.classes)
        buffer = OneSlotBuffer(self.buffer) if self.dedup else SlidingWindow(self.buffer)
        empty = RunningSum.zeros(setup.model.size)
        return FedRAWState(setup.model, 0, scorer, buffer, empty), clients.clients

    def step(self, state: FedRAWState, event: Event) -> tuple[FedRAWState, Receivers]:
        """Score, buffer, weight and aggregate an update: Algorithm 1 of the paper."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.scorer, event)
            if isinstance(event, Joined):
                state.arrivals_since_left.pop(event.client, None)
            return state, receivers
        update = event.update
        check(state, update)
        state.scorer.observe(update)
        changes = self._insert(state, update)
        changes += self._reweight(state)
        if state.full:
            state.model = frozen(self._mean(state, changes))
            state.version += 1
            state.scorer.model_changed(state.version, state.model)
        elif self.robust is None:
            state.weighted_sum.add(changes)
        return state, [update.client]

    def _mean(self, state: FedRAWState, changes: list[Term]) -> Vector:
        slots = state.buffer.slots
        if self.robust is None:
            return state.weighted_sum.mean(changes, slots, state.version)
        return robust_mean(slots, state.model, self.robust, self.robust_at)

    def _insert(self, state: FedRAWState, update: Update) -> list[Term]:
        """Buffer the update; return the terms by which removed slots change the weighted sum."""
        removed = self._expire_departed(state) if state.federation.departed else []
        replaced = state.buffer.add(Slot(update, 0.0))
        if replaced is not None:
            removed.append(replaced)
        if not state.full:
            needed = min(self.buffer, len(state.federation)) if self.dedup else self.buffer
            state.full = len(state.buffer.slots) >= needed
        return [(-slot.coefficient, slot.update.vector) for slot in removed]

    def _reweight(self, state: FedRAWState) -> list[Term]:
        """Update every slot's capped score; return the terms that this adds to the weighted sum."""
        changes: list[Term] = []
        for slot, coefficient in zip(state.buffer.slots, self._coefficients(state), strict=True):
            if coefficient != slot.coefficient:
                changes.append((coefficient - slot.coefficient, slot.update.vector))
                slot.coefficient = coefficient
        return changes

    def _coefficients(self, state: FedRAWState) -> Sequence[float]:
        """Return the capped rarity score a_j of each slot; its weight is a_j / Σ_k a_k."""
        clients = state.buffer.clients
        if self.weighting == "uniform":
            return [1.0] * len(clients)
        scores = state.scorer.scores(clients)
        # While the buffer fills there are no weights yet, and a few slots cannot meet every cap.
        if self.cap == "none" or not state.full:
            return scores
        return capped_scores(scores, self.cap, self.cap_at)

    def _expire_departed(self, state: FedRAWState) -> list[Slot]:
        """Remove slots of departed clients after K further arrivals, if few members remain."""
        departed, buffer = state.federation.departed, state.buffer
        if not isinstance(buffer, OneSlotBuffer):  # a sliding window evicts by itself
            return []
        before = state.arrivals_since_left
        since = {c: before.get(c, 0) + 1 for c in buffer.clients if c in departed}
        few = len(state.federation) < self.buffer
        expired = [client for client, arrivals in since.items() if few and arrivals >= self.buffer]
        state.arrivals_since_left = {c: n for c, n in since.items() if c not in expired}
        return [buffer.remove(client) for client in expired]
