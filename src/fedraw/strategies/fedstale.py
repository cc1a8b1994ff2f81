"""FedStale: differences corrected by the cached differences of all clients, to an extent β.

Rodio, Neglia: "FedStale: Leveraging Stale Client Updates in Federated Learning", 2024, arXiv
2405.04171.

After K arrivals   v = β h + (1/N) Σ_{i in S} (Δ_i − β h_i) / p_i,   w ← w + η v,   then h_i ← Δ_i,
with h = (1/N) Σ_i h_i over all N clients. p_i is the probability that client i takes part:

    participation = "estimated"   1/ω_i, with FedAU's ω_i: mean steps between participations
                    "buffer"      K/N; with β = 1 this is CA2FL, with β = 0 FedBuff
                    "certain"     1; with β = 1 and no client twice in a buffer this is MIFA

With `average="heard"`, N counts the clients that have sent an update instead of all clients. With
p_i = K/N this changes h only, because (1/N) / p_i is 1/K. With p_i = 1 it is the public
asynchronous variant FedStaleAsync with constant weights, whose staleness functions are not offered.
`refresh` is the same as that of CA2FL.

Deviations: The paper's rounds are synchronous, with a random sample of clients. Here S are the
clients that arrive, with updates that start from models of any age. All clients have the same
weight; the authors' code weights them by sample counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedraw.core.settings import COUNT, SHARE, above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class FedStale(CachedMethod):
    """FedStale; `beta` is β, and `server_lr` is η.

    Args:
        buffer: The number of updates K in a step of the server.
        server_lr: The server rate: the factor by which a step moves the model.
        beta: How far cached differences correct a step: 0 not at all, 1 completely.
        participation: The probability that a client takes part in a step: estimated from its past,
            the same for all, or one.
        average: The clients over which the cache is averaged: all members, or only those that have
            sent an update.
        refresh: When a cached difference is replaced if its client arrives twice in a buffer: after
            the step, or on arrival.
        cutoff: The longest interval between two participations that is counted, in steps.

    """

    buffer: Annotated[int, COUNT] = 10
    server_lr: Annotated[float, above(0)] = 1.0
    beta: Annotated[float, SHARE] = 0.5
    participation: Literal["estimated", "buffer", "certain"] = "estimated"
    average: Literal["members", "heard"] = "members"
    refresh: Literal["round-start", "arrival"] = "round-start"
    cutoff: Annotated[int, COUNT] = 50

    def validate(self) -> None:
        """Refuse to average over clients that nobody remembers."""
        if self.average == "heard" and not self.beta:
            self.refuse(
                "average",
                "needs beta above 0, because without a cache the server does not know which "
                "clients have sent updates; use average = 'members'",
            )

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(
            self.buffer,
            self.server_lr,
            beta=self.beta,
            participation=self.participation,
            repeated=self.refresh,
            average=self.average,
            cutoff=self.cutoff,
        )
