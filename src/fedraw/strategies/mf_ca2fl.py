"""Memory-friendly CA2FL: CA2FL whose cache keeps a few bits of each number.

Wang, Cao, Wu, Chen, Chen (see `ca2fl.py`) mention a variant in which the server keeps a quantised
update of each client. This is our reading of that sentence: the quantiser is ours.

As CA2FL, with h_i ← Q(Δ_i) after a step. Q is the min-max quantiser of `quantise.py`, layer by
layer, with `bits` per number. The differences that arrive are used as they are. h is the mean of
the quantised h_i, that is of the same numbers that are subtracted later, so an error of
quantisation leaves with the h_i that it came with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedraw.core.settings import one_of
from fedraw.strategies.cached_steps import CachedState, CacheRule, start_cached, step_cached
from fedraw.strategies.protocol import Event, Needs, Receivers, Setup


@dataclass(frozen=True)
class MFCA2FL:
    """CA2FL with a quantised cache; `bits` is 1, 2, 4 or 8, the other settings are CA2FL's."""

    buffer: int = 10
    server_lr: float = 1.0
    bits: int = 8
    refresh: Literal["round-start", "arrival"] = "round-start"

    def __post_init__(self) -> None:
        one_of("refresh", self.refresh, ("round-start", "arrival"))
        self._rule  # noqa: B018 - refuses impossible settings

    @cached_property
    def _rule(self) -> CacheRule:
        return CacheRule(self.buffer, self.server_lr, repeated=self.refresh, bits=self.bits)

    @property
    def needs(self) -> Needs:
        """Differences; the weights in the log come from the cache."""
        return self._rule.needs

    def start(self, setup: Setup) -> tuple[CachedState, Receivers]:
        """Start with an empty buffer and an empty cache."""
        return start_cached(setup, self._rule)

    def step(self, state: CachedState, event: Event) -> tuple[CachedState, Receivers]:
        """Buffer a difference; after K of them, make a calibrated server step."""
        return step_cached(state, event, self._rule)
