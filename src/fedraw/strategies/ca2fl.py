"""CA2FL: buffered differences, calibrated by a cache of every client's last difference.

Wang, Cao, Wu, Chen, Chen: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024.

After K arrivals   v = h + (1/K) Σ_i (Δ_i − h_i),   w ← w + η v,
then h_i ← the newest Δ_i of each client in the buffer, and h = (1/N) Σ_i h_i over all N clients,
where h_i = 0 for a client without updates. The h in v is that of the previous step.

If a client arrives twice in one buffer, both differences are compared with its h_i from the start
of the round (`refresh="round-start"`), or the second one with the first ("arrival"). The h_i of a
client that leaves is dropped. N is the number of members.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedraw.core.settings import one_of
from fedraw.strategies.cached_steps import CachedState, CacheRule, start_cached, step_cached
from fedraw.strategies.protocol import Event, Needs, Receivers, Setup


@dataclass(frozen=True)
class CA2FL:
    """CA2FL; `server_lr` is η, and `refresh` says when h_i takes the newest difference."""

    buffer: int = 10
    server_lr: float = 1.0
    refresh: Literal["round-start", "arrival"] = "round-start"

    def __post_init__(self) -> None:
        one_of("refresh", self.refresh, ("round-start", "arrival"))
        self._rule  # noqa: B018 - refuses impossible settings

    @cached_property
    def _rule(self) -> CacheRule:
        return CacheRule(self.buffer, self.server_lr, repeated=self.refresh)

    @property
    def needs(self) -> Needs:
        """Differences; the weights in the log come from the cache."""
        return Needs(sends="delta", influence="cache")

    def start(self, setup: Setup) -> tuple[CachedState, Receivers]:
        """Start with an empty buffer and an empty cache."""
        return start_cached(setup, self._rule)

    def step(self, state: CachedState, event: Event) -> tuple[CachedState, Receivers]:
        """Buffer a difference; after K of them, make a calibrated server step."""
        return step_cached(state, event, self._rule)
