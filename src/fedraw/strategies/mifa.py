"""MIFA: each step is the mean of every client's last difference.

Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device
Unavailability", NeurIPS 2021.

An arrival sets G_i ← Δ_i. After K arrivals   w ← w + η (1/N) Σ_i G_i   over all N clients.

This is the engine of `cached_steps.py` with β = 1 and p_i = 1. `wait=True` is the paper's main
form, which makes no step until all clients have sent an update; by default G_i = 0 until then, so
that the slowest client does not hold up the others.

Deviations: A round of the paper has the clients that are available at that time, and all of them
start from the current model. Here a round is K arrivals, from models of any age. The authors store
Δ_i divided by the local rate of its time. With a constant local rate this is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedraw.core.settings import COUNT, above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class MIFA(CachedMethod):
    """MIFA; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        wait: Whether the first step waits until every client has sent an update.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    wait: bool = False

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(
            self.buffer,
            self.server_lr,
            participation="certain",
            repeated="newest",
            wait=self.wait,
        )
