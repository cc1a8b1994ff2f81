"""FedAU: differences weighted by how rarely their clients take part.

Wang, Ji: "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
Averaging", ICLR 2024.

After K arrivals   w ← w + η (1/N) Σ_{i in S} ω_i Δ_i,
where ω_i is the mean of the client's completed intervals, or 1 if there are none. An interval is
the number of steps from one participation to the next; it ends at `cutoff` steps at the latest.
ω_i uses the intervals before this step.

This is the engine of `cached_steps.py` with β = 0 and p_i = 1/ω_i. A client that arrives twice in
one buffer counts once, with its newest difference.

Deviations: A round of the paper is a set of clients that take part at the same time. Here it is K
arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedraw.core.settings import COUNT, above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class FedAU(CachedMethod):
    """FedAU; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        cutoff: The longest interval between two participations that is counted, in steps.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    cutoff: Annotated[int, COUNT] = 50

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(
            self.buffer,
            self.server_lr,
            beta=0.0,
            participation="estimated",
            repeated="newest",
            cutoff=self.cutoff,
        )
