"""q-FedAvg: a round in which clients with a higher loss pull harder.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020.

With L = 1/lr of the local training and F_k client k's mean loss at the global w before training,

    w ← w − Σ_k Δ_k / Σ_k h_k,   Δ_k = F_k^q L (w − w_k),
                                 h_k = q F_k^(q−1) ||L (w − w_k)||² + L F_k^q.

All clients take part and the sums are unweighted, as the authors' code has it once clients are
sampled by size; `p="samples"` multiplies each term by n_k. q = 0 is the uniform mean. Batch-norm
statistics are averaged as in FedAvg: through this formula they would hardly move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedraw.core.aggregation import RunningSum
from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import RefusedUpdate
from fedraw.strategies.deltas import empty_sums, split
from fedraw.strategies.rounds import Round, step_in_rounds
from fedraw.strategies.strategy import (
    Contents,
    Event,
    Receivers,
    Request,
    at_least,
    one_of,
    positive,
    starting,
)

# Keeps a power of the loss finite for a client that fits its data perfectly.
TINY_LOSS = 1e-10


@dataclass(eq=False)
class QFedAvgState:
    """`sum` = Σ_k p_k F_k^q w_k, `curvature` = Σ_k p_k h_k, statistics weighted by samples."""

    model: Vector
    version: int
    federation: Federation
    round: Round
    sum: RunningSum
    statistics: RunningSum
    curvature: float = 0.0
    examples: int = 0
    closed: Round | None = None

    @property
    def contents(self) -> Contents:
        return Contents() if self.closed is None else self.closed.contents


@dataclass(frozen=True)
class QFedAvg:
    lr: float
    q: float = 5.0
    p: Literal["uniform", "samples"] = "uniform"
    layout: Layout | None = None

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        at_least("q", self.q, 0)
        one_of("p", self.p, ("uniform", "samples"))

    @property
    def request(self) -> Request:
        return Request(loss=True)

    def start(self, model: Vector, clients: LabelTable) -> tuple[QFedAvgState, Receivers]:
        federation = Federation.of(clients)
        sums = empty_sums(model, self.layout)
        state = QFedAvgState(starting(model), 0, federation, Round.of(federation), *sums)
        return state, clients.clients

    def step(self, state: QFedAvgState, event: Event) -> tuple[QFedAvgState, Receivers]:
        return step_in_rounds(state, event, self._take_in, self._aggregate, needs_loss=True)

    def _take_in(self, state: QFedAvgState, update: Update) -> float:
        loss = float(update.loss or 0.0) + TINY_LOSS
        trained, statistics = split(update.vector, self.layout)
        start, _ = split(state.model, self.layout)
        moved = start.astype(np.float64) - trained
        squared_norm = float(np.square(moved).sum()) / self.lr**2
        p = float(update.examples) if self.p == "samples" else 1.0
        with np.errstate(over="ignore", under="ignore"):
            pull = p * float(np.float64(loss) ** self.q)
        curvature = self.q * pull / loss * squared_norm + pull / self.lr
        if not (pull > 0 and curvature < np.inf):
            raise RefusedUpdate(
                f"client {update.client!r} sent the loss {update.loss}, "
                f"whose power of q = {self.q:g} no float holds"
            )
        state.sum.add([(pull, trained)])
        state.statistics.add([(float(update.examples), statistics)])
        state.curvature += curvature
        state.examples += update.examples
        return pull

    def _aggregate(self, state: QFedAvgState) -> Vector:
        start, _ = split(state.model, self.layout)
        descent = sum(state.round.weights) * start.astype(np.float64) - state.sum.total
        parameters = (start - descent / self.lr / state.curvature).astype(np.float32)
        statistics = state.statistics.add([], divisor=state.examples)
        state.sum.clear()
        state.statistics.clear()
        state.curvature, state.examples = 0.0, 0
        return np.concatenate([parameters, statistics])
