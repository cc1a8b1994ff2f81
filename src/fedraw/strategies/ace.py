"""ACE: on every arrival, the model moves by the mean of every client's last difference.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: "Mitigating
Participation Imbalance Bias in Asynchronous Federated Learning", arXiv 2511.19066, 2025.

On an arrival of client i   u ← u + (Δ_i − h_i)/N,   h_i ← Δ_i,   w ← w + η u.

This is MIFA with K = 1. `init="zero"` counts clients that were not heard yet as h_i = 0.
`init="wait"` makes the first step when the last of the N clients has been heard.

Deviations: The paper's clients send gradients. Differences of several local steps are outside its
theory, and its server rate does not carry over to them. Every arrival moves the model by a mean
over all clients, so η = 0.1 moves it as far per arrival as MIFA does with K = 10 and η = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedraw.core.settings import one_of
from fedraw.strategies.cached_steps import CachedState, CacheRule, start_cached, step_cached
from fedraw.strategies.protocol import Event, Needs, Receivers, Setup


@dataclass(frozen=True)
class ACE:
    """ACE; `server_lr` is η, and `init` says how it begins."""

    server_lr: float = 0.1
    init: Literal["zero", "wait"] = "zero"

    def __post_init__(self) -> None:
        one_of("init", self.init, ("zero", "wait"))
        self._rule  # noqa: B018 - refuses impossible settings

    @cached_property
    def _rule(self) -> CacheRule:
        return CacheRule(
            1,
            self.server_lr,
            participation="certain",
            repeated="newest",
            wait=self.init == "wait",
        )

    @property
    def needs(self) -> Needs:
        """Differences; the weights in the log come from the cache."""
        return self._rule.needs

    def start(self, setup: Setup) -> tuple[CachedState, Receivers]:
        """Start with h_i = 0."""
        return start_cached(setup, self._rule)

    def step(self, state: CachedState, event: Event) -> tuple[CachedState, Receivers]:
        """Replace the client's h_i, and add η times the mean of all h_i to the model."""
        return step_cached(state, event, self._rule)
