"""FedVARP: a step along the arrivals' differences, with variance reduced by a cache.

Jhunjhunwala, Sharma, Nagarkatti, Joshi: "FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning", UAI 2022.

After K arrivals   v = h + (1/K) Σ_{i in S} (Δ_i − h_i),   w ← w + η v,   then h_i ← Δ_i for i in S,
with h = (1/N) Σ_i h_i over all N clients. The h in v is that of the previous step.

With a buffer of K arrivals this is CA2FL, bit for bit, so the default here is K = 1 (which is
SAGA): the first arrival of a client moves the model by η times its whole difference. With K = 1 the
model moves at every arrival, so η = 0.1 moves it as far per arrival as CA2FL does with K = 10 and
η = 1.

Deviations: The paper's rounds are synchronous, with a random sample of clients. Here S are the
clients that arrive. All clients have the same weight; one public implementation weights them by
sample counts. `refresh` is CA2FL's. We found no code by the authors; two public implementations
agree on the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedraw.core.settings import COUNT, above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class FedVARP(CachedMethod):
    """FedVARP; `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        refresh: When a cached difference is replaced if its client arrives twice in a buffer: after
            the step, or on arrival.

    """

    buffer: Annotated[int, COUNT] = 1
    server_lr: Annotated[float, above(0)] = 0.1
    refresh: Literal["round-start", "arrival"] = "round-start"

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(self.buffer, self.server_lr, repeated=self.refresh)
