"""FedAvg: all clients train, then the server averages their models by sample counts.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017.

When all n clients of a round have arrived   w ← Σ_k (n_k / Σ n) w_k.

`weighting="uniform"` replaces n_k / Σ n by 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedraw.core.aggregation import RunningSum
from fedraw.core.buffer import Slot
from fedraw.core.federation import Federation
from fedraw.core.robust import Robust, RobustAt, check_robust, robust_mean
from fedraw.core.settings import Settings
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.strategies.protocol import Contents, Event, Needs, Receivers, Setup
from fedraw.strategies.rounds import Round, step_in_rounds


@dataclass(eq=False)
class FedAvgState:
    """The current round and the weighted sum of its models."""

    model: Vector
    version: int
    federation: Federation
    round: Round
    sum: RunningSum
    closed: Round | None = None
    updates: list[Slot] = field(default_factory=list)  # of this round; only with `robust`

    @property
    def contents(self) -> Contents:
        """The round that the last event closed, if it closed one."""
        return Contents() if self.closed is None else self.closed.contents


@dataclass(frozen=True)
class FedAvg(Settings):
    """FedAvg with all clients in every round.

    The robust means need all models of a round in memory.

    Args:
        weighting: Whether clients are weighted by their samples, or all equally.
        robust: A mean that one bad update cannot move far: "clip" shortens updates that are far
            from the model, "trim" leaves out the extreme values of each coordinate.
        robust_at: The strength of the robust mean: for "clip" a multiple of the median distance,
            for "trim" the share of values that is left out on each side.

    """

    weighting: Literal["samples", "uniform"] = "samples"
    robust: Robust | None = None
    robust_at: RobustAt = None

    def validate(self) -> None:
        """Refuse a strength that the robust mean cannot have."""
        check_robust(self.robust, self.robust_at)

    @property
    def needs(self) -> Needs:
        """Clients send models."""
        return Needs()

    def start(self, setup: Setup) -> tuple[FedAvgState, Receivers]:
        """Start the first round with all clients."""
        federation = Federation.of(setup.clients)
        empty = RunningSum.zeros(setup.model.size)
        state = FedAvgState(setup.model, 0, federation, Round.of(federation), empty)
        return state, setup.clients.clients

    def step(self, state: FedAvgState, event: Event) -> tuple[FedAvgState, Receivers]:
        """Add a model to the round; average when the round is complete."""
        return step_in_rounds(state, event, self._take_in, self._aggregate)

    def _take_in(self, state: FedAvgState, update: Update) -> float:
        weight = float(update.examples) if self.weighting == "samples" else 1.0
        if self.robust is None:
            state.sum.add([(weight, update.vector)])
        else:
            state.updates.append(Slot(update, weight))
        return weight

    def _aggregate(self, state: FedAvgState) -> Vector:
        if self.robust is None:
            mean = state.sum.add([], divisor=sum(state.round.weights))
            state.sum.clear()
        else:
            mean = robust_mean(state.updates, state.model, self.robust, self.robust_at)
            state.updates = []
        return mean
