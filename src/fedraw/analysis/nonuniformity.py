"""ρ = K · sup Σ w²: how far from uniform the weights of a buffer can get.

1 is uniform, K is one slot alone. It is the price of weighting in the convergence bound (`bound`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedraw.analysis.presence import Buffer
from fedraw.core.types import Floats
from fedraw.core.weighting import Cap, check_cap, weights
from fedraw.errors import BadInput


@dataclass(frozen=True)
class Rho:
    """What some buffer of these scores reaches, and what none exceeds; equal where it is exact."""

    reached: float
    at_most: float
    buffer: tuple[float, ...]  # the scores of the buffer that reaches it

    @property
    def exact(self) -> bool:
        return math.isclose(self.reached, self.at_most, rel_tol=1e-12)


def rho_of(scores: Sequence[float], cap: Cap = "none", cap_at: float = 1.0) -> float:
    """K Σ w² of one buffer.

    >>> [round(rho_of([0.1647] * rare + [0.05] * (10 - rare)), 2) for rare in range(5)]
    [1.0, 1.31, 1.4, 1.39, 1.34]
    """
    return len(scores) * float(np.square(weights(scores, cap, cap_at)).sum())


def largest_rho(
    scores: Floats,
    size: int,
    buffer: Buffer = "dedup",
    cap: Cap = "none",
    cap_at: float = 1.0,
    tried: int = 10_000,
) -> Rho:
    """The supremum over all buffers of `size` slots that clients with these scores can fill.

    Without a cap the worst buffer holds the j highest and K − j lowest scores for some j, so K + 1
    buffers settle it. With one it need not: every buffer is tried if at most `tried` differ in
    their scores; otherwise the value reached is the best of the K + 1, and none exceeds `at_most`.

    >>> largest_rho(np.array([0.16, 0.16, 0.05, 0.05, 0.05]), 3).buffer
    (0.16, 0.05, 0.05)
    >>> largest_rho(np.array([8.0, 7.2, 7.0, 1.0, 1.0]), 3, "dedup", "water-filling", 0.5).buffer
    (8.0, 7.0, 1.0)
    """
    check_cap(cap, cap_at, size)
    ordered = _ordered(scores, size, buffer)
    plain = max(_ends(ordered, size, buffer), key=rho_of)
    if cap == "none":
        return Rho(rho_of(plain), rho_of(plain), plain)
    every = _every(ordered, size, buffer, tried)
    worst = max(every or _ends(ordered, size, buffer), key=lambda held: rho_of(held, cap, cap_at))
    reached = rho_of(worst, cap, cap_at)
    if every:
        return Rho(reached, reached, worst)
    at_most = rho_of(plain)
    if cap == "water-filling":
        at_most = min(at_most, _fully_capped(size, cap_at))
    return Rho(reached, max(at_most, reached), worst)


def _ordered(scores: Floats, size: int, buffer: Buffer) -> Floats:
    if not scores.size or not ((scores > 0) & (scores < np.inf)).all():
        raise BadInput("rarity scores must be positive and finite; give one for each client")
    if size < 1 or (buffer == "dedup" and size > scores.size):
        raise BadInput(
            f"a buffer of {size} with one slot per client never fills with {scores.size} clients; "
            f"give a size from 1 to {scores.size}"
        )
    return np.sort(scores)


def _ends(ordered: Floats, size: int, buffer: Buffer) -> Iterator[tuple[float, ...]]:
    """Buffers of the j highest and K − j lowest scores; a client may repeat unless deduplicated."""
    if buffer == "dedup":
        low, high = ordered[:size], ordered[ordered.size - size :]
    else:
        low, high = np.full(size, ordered[0]), np.full(size, ordered[-1])
    for j in range(size + 1):
        yield (*high[size - j :][::-1].tolist(), *low[: size - j].tolist())


def _every(ordered: Floats, size: int, buffer: Buffer, tried: int) -> list[tuple[float, ...]]:
    """All buffers that differ in their scores, highest first; none if more than `tried`."""
    distinct, counts = np.unique(ordered, return_counts=True)
    if distinct.size > tried:
        return []
    parts: list[tuple[float, ...]] = [()]
    rest = int(counts.sum()) if buffer == "dedup" else size * distinct.size
    for score, count in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        most = count if buffer == "dedup" else size
        rest -= most
        # Whoever is left out now must leave enough for the slots that are still empty.
        parts = [
            (*part, *[score] * taken)
            for part in parts
            for taken in range(min(most, size - len(part)) + 1)
            if len(part) + taken + rest >= size
        ]
        if len(parts) > tried:
            return []
    return parts


def _fully_capped(size: int, cap_at: float) -> float:
    """As many weights at the cap as fit, one with the rest: no weights up to the cap exceed it."""
    pinned = math.floor(1 / cap_at * (1 + 1e-12))
    rest = max(0.0, 1 - pinned * cap_at)
    return size * (pinned * cap_at**2 + rest**2)
