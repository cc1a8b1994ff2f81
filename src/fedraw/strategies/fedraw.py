"""FedRAW: one buffer slot per client, weights by rarity.

Bajpai, Saxena, Lalanda, Vega: "FedRAW: Preserving Rare-Label Influence in Asynchronous Federated
Learning".

On the arrival of θ_i:   a client in the buffer B is replaced where it stands, another is appended
                         and the oldest evicted; whenever |B| = K,
                         θ ← Σ_{j∈B} w_j θ_j,   w_j = S_j / Σ_{k∈B} S_k.

`dedup=False` is the paper's WeightOnly (a client in two slots counts twice), `weighting="uniform"`
its DedupOnly. The caps on w are the paper's two defences against a false claim. Beyond the paper,
`labels` says where S comes from: what clients declare, that as far as their updates bear it out
("checked"), or the updates alone ("inferred"); see core.witness.

The paper has no clients that leave. Here the slot of a client that has left is evicted by age like
any other. That never happens if fewer than K members remain, because they all have slots already.
Then the slot is evicted once K updates of others have arrived since the client left; a client that
joins again before that keeps its slot. For the first aggregation the buffer counts as full with
min(K, number of members) slots, and from then on every arrival aggregates what the buffer holds.
While nobody leaves this is the paper's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import OneSlotBuffer, SlidingWindow, Slot
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Label, Vector
from fedraw.core.update import Update
from fedraw.core.weighting import Cap, capped_scores, check_cap
from fedraw.core.witness import Labels, Witness
from fedraw.errors import BadInput
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Event,
    Joined,
    Receivers,
    Request,
    called,
    change_members,
    check,
    frozen,
    one_of,
    scores_of,
    starting,
    whole,
)


@dataclass(eq=False)
class FedRAWState:
    """The buffer, and the running sum Σ_j a_j θ_j in which slot j has its capped score a_j."""

    model: Vector
    version: int
    federation: Federation
    buffer: OneSlotBuffer | SlidingWindow
    weighted_sum: RunningSum
    witness: Witness | None = None  # unless labels are as declared
    full: bool = False  # whether the buffer has been full: from then on, every arrival aggregates
    # Of clients in the buffer that have left: how many updates have arrived since.
    arrivals_since_left: dict[ClientId, int] = field(default_factory=dict)

    @property
    def contents(self) -> Contents:
        clients = self.buffer.clients
        if not self.full:
            return Contents(clients)
        coefficients = [slot.coefficient for slot in self.buffer.slots]
        total = sum(coefficients)
        return Contents(clients, [coefficient / total for coefficient in coefficients])


@dataclass(frozen=True)
class FedRAW:
    buffer: int = 10
    dedup: bool = True
    weighting: Literal["rarity", "uniform"] = "rarity"
    cap: Cap = "none"
    cap_at: float = 1.0
    labels: Labels = "declared"
    layout: Layout | None = None  # of the model, and the names of its outputs: only if not declared
    classes: tuple[Label, ...] | None = None

    def __post_init__(self) -> None:
        whole("buffer", self.buffer)
        one_of("weighting", self.weighting, ("rarity", "uniform"))
        one_of("labels", self.labels, get_args(Labels))
        check_cap(self.cap, self.cap_at, self.buffer)

    @property
    def request(self) -> Request:
        return Request()

    def start(self, model: Vector, clients: LabelTable) -> tuple[FedRAWState, Receivers]:
        if self.dedup and self.buffer > len(clients):
            raise BadInput(
                f"buffer = {self.buffer} never fills with one slot for each of {len(clients)} "
                f"clients; use at most {len(clients)}, or dedup = false"
            )
        federation = Federation.of(clients)
        buffer = OneSlotBuffer(self.buffer) if self.dedup else SlidingWindow(self.buffer)
        empty = RunningSum.zeros(model.size)
        first = starting(model)
        witness = called(self.labels, self.classes, first, self.layout, self.request)
        return FedRAWState(first, 0, federation, buffer, empty, witness), clients.clients

    def step(self, state: FedRAWState, event: Event) -> tuple[FedRAWState, Receivers]:
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event, state.witness)
            if isinstance(event, Joined):
                state.arrivals_since_left.pop(event.client, None)
            return state, receivers
        check(state, event.update)
        if state.witness is not None and self.layout is not None:
            state.witness.hear(event.update, self.layout, state.federation, sends_delta=False)
        changes = self._take_in(state, event.update)
        if state.full:
            slots = state.buffer.slots
            state.model = frozen(state.weighted_sum.mean(changes, slots, state.version))
            state.version += 1
            if state.witness is not None and self.layout is not None:
                state.witness.handed(state.version, state.model, self.layout)
        else:
            state.weighted_sum.add(changes)
        return state, [event.update.client]

    def _take_in(self, state: FedRAWState, update: Update) -> Sequence[Term]:
        """Buffer the update; return what that changes in the weighted sum."""
        gone = self._evict_departed(state)
        left = state.buffer.add(Slot(update, 0.0))
        gone += [] if left is None else [left]
        changes: list[Term] = [(-slot.coefficient, slot.update.vector) for slot in gone]
        needed = min(self.buffer, len(state.federation)) if self.dedup else self.buffer
        state.full = state.full or len(state.buffer.slots) >= needed
        for slot, coefficient in zip(state.buffer.slots, self._scores(state), strict=True):
            if coefficient != slot.coefficient:
                changes.append((coefficient - slot.coefficient, slot.update.vector))
                slot.coefficient = coefficient
        return changes

    def _evict_departed(self, state: FedRAWState) -> list[Slot]:
        """Count an arrival for the clients that have left; take out those whose time is over."""
        departed, buffer = state.federation.departed, state.buffer
        if not departed or not isinstance(buffer, OneSlotBuffer):  # a sliding window moves on
            return []
        before = state.arrivals_since_left
        since = {c: before.get(c, 0) + 1 for c in buffer.clients if c in departed}
        few = len(state.federation) < self.buffer
        over = [client for client, arrivals in since.items() if few and arrivals >= self.buffer]
        state.arrivals_since_left = {c: n for c, n in since.items() if c not in over}
        return [buffer.remove(client) for client in over]

    def _scores(self, state: FedRAWState) -> Sequence[float]:
        clients = state.buffer.clients
        if self.weighting == "uniform":
            return [1.0] * len(clients)
        scores: Sequence[float] = scores_of(state.federation, state.witness, clients)
        # While the buffer fills there are no weights yet, and few slots cannot meet every cap.
        return capped_scores(scores, self.cap, self.cap_at) if state.full else scores
