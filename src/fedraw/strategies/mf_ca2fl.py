"""Memory-friendly CA2FL: CA2FL whose cache keeps a few bits of each number.

Wang, Cao, Wu, Chen, Chen (see `ca2fl.py`) mention a variant in which the server keeps a quantised
update of each client, without details. The quantiser here is our choice.

The rule is that of CA2FL, with h_i ← Q(Δ_i) after a step. Q is the min-max quantiser of
`quantise.py`, layer by layer, with `bits` per number. Arriving differences are used unquantised. h
is the mean of the quantised h_i, the same numbers that are subtracted later, so the quantisation
error of an h_i disappears when h_i is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedraw.core.settings import one_of
from fedraw.strategies.cached_steps import CachedMethod, CacheRule


@dataclass(frozen=True)
class MFCA2FL(CachedMethod):
    """CA2FL with a quantised cache; `bits` is 1, 2, 4 or 8, the other settings are CA2FL's."""

    buffer: int = 10
    server_lr: float = 1.0
    bits: int = 8
    refresh: Literal["round-start", "arrival"] = "round-start"

    @property
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""
        one_of("refresh", self.refresh, ("round-start", "arrival"))
        return CacheRule(self.buffer, self.server_lr, repeated=self.refresh, bits=self.bits)
