"""ACE: on every arrival, the model moves by the mean of every client's last difference.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: "Mitigating
Participation Imbalance Bias in Asynchronous Federated Learning", arXiv 2511.19066, 2025.

On an arrival of client i   u ← u + (Δ_i − h_i)/N,   h_i ← Δ_i,   w ← w + η u.

This is MIFA with K = 1. With `init="zero"`, h_i = 0 for a client without updates.
`init="wait"` makes the first step when every one of the N clients has sent an update.

Deviations: The paper's clients send gradients. Differences of several local steps are outside its
theory, and its server rate does not carry over to them. Every arrival moves the model by a mean
over all clients, so η = 0.1 moves it as far per arrival as MIFA does with K = 10 and η = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedraw.core.settings import above
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class ACE(CachedMethod):
    """ACE; `server_lr` is η.

    Args:
        server_lr: The server rate: the factor by which a step moves the model.
        init: What happens before all clients have sent an update: absent ones count as zero, or the
            first step waits for them.

    """

    server_lr: Annotated[float, above(0)] = 0.1
    init: Literal["zero", "wait"] = "zero"

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        return CacheRule(
            1,
            self.server_lr,
            participation="certain",
            repeated="newest",
            wait=self.init == "wait",
        )
