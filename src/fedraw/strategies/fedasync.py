"""FedAsync: every update is mixed into the model on arrival, stale updates with less weight.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019.

On the arrival of w_i with staleness τ in versions   w ← (1 − α_t) w + α_t w_i,   α_t = α s(τ),
s(τ) = 1, (1 + τ)^-a, or 1 up to τ = b and 1 / (a (τ − b) + 1) beyond. The client's loss has the
proximal term (ρ/2) ||x − x_start||². The paper has ρ > 0. Here ρ is the setting `proximal`, by
default 0, so that all methods train with the same local loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.settings import Range, Settings, With, at_least
from fedraw.core.types import ClientId, Vector
from fedraw.core.weighting import Staleness, staleness_discount
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


@dataclass(eq=False)
class FedAsyncState:
    """The model and the client whose update was mixed in last."""

    model: Vector
    version: int
    federation: Federation
    latest: ClientId | None = None

    @property
    def contents(self) -> Contents:
        """The client of the last update."""
        return Contents() if self.latest is None else Contents([self.latest], [1.0])


@dataclass(frozen=True)
class FedAsync(Settings):
    """FedAsync with one of three staleness functions.

    Args:
        alpha: The share that an update without staleness has in the new model.
        staleness: How the weight of an update falls with its staleness τ in versions.
        exponent: The exponent a of the staleness factor (1 + τ)^-a, if staleness is "polynomial".
        hinge_slope: How fast the weight falls beyond this staleness, if staleness is "hinge".
        hinge_grace: The staleness up to which an update has full weight, if staleness is "hinge".
        proximal: The factor of the proximal term in the clients' loss; 0 leaves it out.

    """

    alpha: Annotated[float, Range(0, 1, open_low=True)] = 0.6
    staleness: Staleness = "polynomial"
    exponent: Annotated[float, With("staleness", ("polynomial",)), Range(0, 10)] = 0.5
    hinge_slope: Annotated[float, With("staleness", ("hinge",)), at_least(0)] = 10.0
    hinge_grace: Annotated[float, With("staleness", ("hinge",)), at_least(0)] = 4.0
    proximal: Annotated[float, at_least(0)] = 0.0

    @property
    def needs(self) -> Needs:
        """Clients send models, trained with the proximal term."""
        return Needs(proximal=self.proximal)

    def start(self, setup: Setup) -> tuple[FedAsyncState, Receivers]:
        """Start with the initial model."""
        state = FedAsyncState(setup.model, 0, Federation.of(setup.clients))
        return state, setup.clients.clients

    def step(self, state: FedAsyncState, event: Event) -> tuple[FedAsyncState, Receivers]:
        """Mix an update into the model, discounted by its staleness."""
        if not isinstance(event, Arrived):
            return state, change_members(state.federation, event)
        update = event.update
        check(state, update)
        a = np.float32(self.alpha * self._discount(state.version - update.start_version))
        state.model = frozen((1 - a) * state.model + a * update.vector)
        state.version += 1
        state.latest = update.client
        return state, [update.client]

    def _discount(self, versions: int) -> float:
        return staleness_discount(
            self.staleness, versions, self.exponent, self.hinge_slope, self.hinge_grace
        )
