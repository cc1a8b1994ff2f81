"""CA2FL: buffered differences, calibrated by a cache of every client's last difference.

Wang, Cao, Wu, Chen, Chen: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024.

After K arrivals   v = h + (1/K) Σ_i (Δ_i − h_i),   w ← w + η v,
then h_i ← the newest Δ_i of each client in the buffer, and h = (1/N) Σ_i h_i over all N clients,
where h_i = 0 for a client without updates. The h in v is that of the previous step.

If a client arrives twice in one buffer, h_i for both differences is that from the start of the
round (`refresh="round-start"`), or for the second difference the first one ("arrival"). The h_i of
a client that leaves is dropped. N is the number of members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedraw.core.settings import COUNT, above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class CA2FL(CachedMethod):
    """CA2FL; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        refresh: When a cached difference is replaced if its client arrives twice in a buffer: after
            the step, or on arrival.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    refresh: Literal["round-start", "arrival"] = "round-start"

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(
            self.buffer, self.server_lr, repeated=self.refresh, single_statistics="mean"
        )
