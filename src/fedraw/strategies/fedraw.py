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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.buffer import OneSlotBuffer, SlidingWindow, Slot
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import Label, Vector
from fedraw.core.update import Update
from fedraw.core.weighting import Cap, capped_scores, check_cap
from fedraw.core.witness import Labels, Witness
from fedraw.errors import BadInput
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Event,
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

    @property
    def contents(self) -> Contents:
        clients = self.buffer.clients
        if len(clients) < self.buffer.capacity:
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
            return state, change_members(state.federation, event, state.witness)
        check(state, event.update)
        if state.witness is not None and self.layout is not None:
            state.witness.hear(event.update, self.layout, state.federation, sends_delta=False)
        changes = self._take_in(state, event.update)
        slots = state.buffer.slots
        if len(slots) < self.buffer:
            state.weighted_sum.add(changes)
        else:
            state.model = frozen(state.weighted_sum.mean(changes, slots, state.version))
            state.version += 1
            if state.witness is not None and self.layout is not None:
                state.witness.handed(state.version, state.model, self.layout)
        return state, [event.update.client]

    def _take_in(self, state: FedRAWState, update: Update) -> Sequence[Term]:
        """Buffer the update; return what that changes in the weighted sum."""
        changes: list[Term] = []
        left = state.buffer.add(Slot(update, 0.0))
        if left is not None:
            changes.append((-left.coefficient, left.update.vector))
        for slot, coefficient in zip(state.buffer.slots, self._scores(state), strict=True):
            if coefficient != slot.coefficient:
                changes.append((coefficient - slot.coefficient, slot.update.vector))
                slot.coefficient = coefficient
        return changes

    def _scores(self, state: FedRAWState) -> Sequence[float]:
        clients = state.buffer.clients
        if self.weighting == "uniform":
            return [1.0] * len(clients)
        scores: Sequence[float] = scores_of(state.federation, state.witness, clients)
        # While the buffer fills there are no weights yet, and few slots cannot meet every cap.
        full = len(clients) == self.buffer
        return capped_scores(scores, self.cap, self.cap_at) if full else scores
