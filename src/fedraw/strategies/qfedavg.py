"""q-FedAvg: a synchronous round in which clients with a higher loss weigh more.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020.

With L = 1/lr of the local training and F_k client k's mean loss at the global w before training,

    w ← w − Σ_k Δ_k / Σ_k h_k,   Δ_k = F_k^q L (w − w_k),
                                 h_k = q F_k^(q−1) ||L (w − w_k)||² + L F_k^q.

All clients take part and the sums are unweighted, as in the authors' code, which samples clients by
size. `p="samples"` multiplies each term by n_k. q = 0 gives the uniform mean. Batch-norm statistics
are averaged as in FedAvg, because this formula would hardly move them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from fedraw.core.aggregation import RunningSum
from fedraw.core.federation import Federation
from fedraw.core.settings import DERIVED, Settings, above, at_least
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.strategies.protocol import Contents, Event, Needs, Receivers, Setup
from fedraw.strategies.rounds import Round, step_in_rounds

# Added to every loss, to keep its powers finite for a client that fits its data perfectly.
TINY_LOSS = 1e-10


@dataclass(eq=False)
class QFedAvgState:
    """`sum` = Σ_k p_k F_k^q w_k, `curvature` = Σ_k p_k h_k, `lr` = 1/L."""

    model: Vector
    version: int
    federation: Federation
    round: Round
    sum: RunningSum
    lr: float
    curvature: float = 0.0
    closed: Round | None = None

    @property
    def contents(self) -> Contents:
        """The round that the last event closed, if it closed one."""
        return Contents() if self.closed is None else self.closed.contents


@dataclass(frozen=True)
class QFedAvg(Settings):
    """q-FedAvg with all clients in every round; `lr` is 1/L.

    Args:
        lr: The learning rate of the local training; by default that of the driver.
        q: How much more a client with a higher loss weighs; 0 weights all clients equally.
        p: Whether a client's term counts by its number of samples, or all terms count the same.

    """

    lr: Annotated[float | None, above(0), DERIVED] = None
    q: Annotated[float, at_least(0)] = 5.0
    p: Literal["uniform", "samples"] = "uniform"

    @property
    def needs(self) -> Needs:
        """Clients send models and losses; the library averages statistics as FedAvg does."""
        return Needs(loss=True, statistics="samples")

    def start(self, setup: Setup) -> tuple[QFedAvgState, Receivers]:
        """Start the first round with all clients."""
        lr = setup.local_lr if self.lr is None else self.lr
        if lr is None:
            raise BadInput(
                "q-FedAvg needs the learning rate of the local training, and nobody has set it; "
                "give fedraw.QFedAvg(lr=...), or set training.lr"
            )
        replace(self, lr=lr)  # refuses a rate of the driver that is not positive
        federation = Federation.of(setup.clients)
        empty = RunningSum.zeros(setup.model.size)
        state = QFedAvgState(setup.model, 0, federation, Round.of(federation), empty, lr)
        return state, setup.clients.clients

    def step(self, state: QFedAvgState, event: Event) -> tuple[QFedAvgState, Receivers]:
        """Add a model to the round; make the q-fair step when it is complete."""
        return step_in_rounds(state, event, self._take_in, self._aggregate, needs_loss=True)

    def _take_in(self, state: QFedAvgState, update: Update) -> float:
        loss = float(update.loss or 0.0) + TINY_LOSS
        moved = state.model.astype(np.float64) - update.parameters
        squared_norm = float(np.square(moved).sum()) / state.lr**2
        p = float(update.examples) if self.p == "samples" else 1.0
        with np.errstate(over="ignore", under="ignore"):
            pull = p * float(np.float64(loss) ** self.q)
        curvature = self.q * pull / loss * squared_norm + pull / state.lr
        if not (pull > 0 and curvature < np.inf):
            raise RefusedUpdate(
                f"client {update.client!r} sent the loss {update.loss}, "
                f"whose power of q = {self.q:g} no float holds"
            )
        state.sum.add([(pull, update.parameters)])
        state.curvature += curvature
        return pull

    def _aggregate(self, state: QFedAvgState) -> Vector:
        descent = sum(state.round.weights) * state.model.astype(np.float64) - state.sum.total
        model: Vector = (state.model - descent / state.lr / state.curvature).astype(np.float32)
        state.sum.clear()
        state.curvature = 0.0
        return model
