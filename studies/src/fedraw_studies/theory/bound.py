"""The convergence theorem's bound on the mean squared gradient of F̄, term by term.

8 F̄*/(αT) + 24 L² Q β (τ² + 1) σ² + ρ (8 L β/α) (σ_l²/K + 4G) + C σ² τ²
α = Σ_q η_q,   β = Σ_q η_q²,   σ² = σ_l² + σ_g² + G

ρ = K · sup Σ w² is the cost of weighting: it measures how far weights can be from uniform.
It is 1 for uniform weights and K if one slot has all the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from fedraw.auditing.methods import Buffer
from fedraw.core.types import Floats
from fedraw.core.weighting import Cap, check_cap, weights
from fedraw.errors import BadInput


@dataclass(frozen=True)
class Constants:
    """The constants of the theorem; `steps` is one size for all local steps, or one per step."""

    gap: float  # F̄*: F̄ of the first model minus the infimum of F̄
    smoothness: float  # L
    local_variance: float  # σ_l²: of a stochastic gradient around its client's gradient
    heterogeneity: float  # σ_g²: of the clients' gradients around their mean
    gradient_bound: float  # G: bound on every client's squared gradient norm
    local_steps: int  # Q
    steps: float | tuple[float, ...]  # η
    worst_staleness: float  # τ_max, in versions
    rho: float  # K sup Σ w², from 1 to K
    buffer: int  # K
    aggregations: int  # T
    drift: float | None = None  # C_drift; None: the value in the supplement's proof

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not all(number is None or 0 <= number < math.inf for number in numbers):
                raise BadInput(f"{field.name} = {value} must be finite and not negative")
        for name in ("smoothness", "local_steps", "buffer", "aggregations"):
            if getattr(self, name) <= 0:
                raise BadInput(f"{name} = {getattr(self, name)} must be above 0")
        if isinstance(self.steps, tuple) and len(self.steps) != self.local_steps:
            raise BadInput(
                f"steps has {len(self.steps)} sizes for {self.local_steps} local steps; "
                "give one for each, or a single number"
            )
        if not 1 - 1e-9 <= self.rho <= self.buffer * (1 + 1e-9):
            raise BadInput(f"rho = {self.rho:g} must be from 1 to K = {self.buffer}, as K Σ w² is")
        self._check_steps()

    def _check_steps(self) -> None:
        largest = largest_step(self.smoothness, self.local_steps)
        for size in self.sizes:
            if not 0 < size <= largest * (1 + 1e-12):
                raise BadInput(
                    f"step {size:g} breaks η Q ≤ 1/(4L) with Q = {self.local_steps} and "
                    f"L = {self.smoothness:g}; give a size above 0, at most {largest:.6g}"
                )

    @property
    def sizes(self) -> tuple[float, ...]:
        """The step size of every local step."""
        if isinstance(self.steps, tuple):
            return self.steps
        return (float(self.steps),) * self.local_steps

    @property
    def alpha(self) -> float:
        """α: the sum of the step sizes."""
        return math.fsum(self.sizes)

    @property
    def beta(self) -> float:
        """β: the sum of the squared step sizes."""
        return math.fsum(size * size for size in self.sizes)

    @property
    def variance(self) -> float:
        """σ²: the sum of local variance, heterogeneity and gradient bound."""
        return self.local_variance + self.heterogeneity + self.gradient_bound

    @property
    def drift_constant(self) -> float:
        """The given C, or 24 Q (β/α) (1/α + L), which is 24 (1 + L α) for equal steps."""
        if self.drift is not None:
            return self.drift
        ratio = self.local_steps * self.beta / self.alpha
        return 24 * ratio * (1 / self.alpha + self.smoothness)


@dataclass(frozen=True)
class Bound:
    """The four terms of the bound; as T grows, the first three vanish and the last does not."""

    optimisation: float
    drift_and_staleness: float
    weighting_noise: float
    drift_floor: float
    gradient_bound: float  # G, which the theorem assumes for every client and hence for F̄

    @property
    def total(self) -> float:
        """The bound: the sum of its terms."""
        return (
            self.optimisation + self.drift_and_staleness + self.weighting_noise + self.drift_floor
        )

    @property
    def informative(self) -> bool:
        """Whether the bound is below G, which the assumption ‖∇F_i‖² ≤ G implies anyway."""
        return self.total < self.gradient_bound


def convergence_bound(of: Constants) -> Bound:
    """Return the theorem's right-hand side.

    >>> c = Constants(gap=2, smoothness=1, local_variance=1, heterogeneity=0, gradient_bound=1,
    ...     local_steps=1, steps=0.25, worst_staleness=2, rho=1.5, buffer=10, aggregations=64,
    ...     drift=0.5)
    >>> bound = convergence_bound(c)
    >>> bound.optimisation, bound.drift_and_staleness, bound.drift_floor
    (1.0, 15.0, 4.0)
    >>> round(bound.weighting_noise, 6)  # 1.5 · 8 · 0.25 · (0.1 + 4)
    12.3
    """
    smooth, alpha, beta, sigma2 = of.smoothness, of.alpha, of.beta, of.variance
    stale2 = of.worst_staleness**2
    noise = of.local_variance / of.buffer + 4 * of.gradient_bound
    return Bound(
        optimisation=8 * of.gap / (alpha * of.aggregations),
        drift_and_staleness=24 * smooth**2 * of.local_steps * beta * (stale2 + 1) * sigma2,
        weighting_noise=of.rho * 8 * smooth * beta / alpha * noise,
        drift_floor=of.drift_constant * sigma2 * stale2,
        gradient_bound=of.gradient_bound,
    )


def largest_step(smoothness: float, local_steps: int) -> float:
    """Return the largest step size that the theorem admits, 1/(4 L Q).

    >>> largest_step(smoothness=2, local_steps=5)
    0.025
    """
    return 1 / (4 * smoothness * local_steps)


@dataclass(frozen=True)
class Rho:
    """A value of ρ that some buffer reaches, and an upper bound; they are equal if exact."""

    reached: float
    at_most: float
    buffer: tuple[float, ...]  # the scores in the buffer that reaches it

    @property
    def exact(self) -> bool:
        """Whether the bound is reached."""
        return math.isclose(self.reached, self.at_most, rel_tol=1e-12)


def rho_of(scores: Sequence[float], cap: Cap = "none", cap_at: float = 1.0) -> float:
    """Return K Σ w² of one buffer with these scores.

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
    """Return the supremum of ρ over all buffers of `size` slots of clients with these scores.

    Without a cap, the worst buffer holds the j highest and K − j lowest scores for some j, so K + 1
    buffers are tried. With a cap this need not be true. Then every buffer is tried if at most
    `tried` of them differ in their scores; otherwise `reached` is the maximum over the K + 1.

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
    """Yield buffers of the j highest and K − j lowest scores; clients repeat without dedup."""
    if buffer == "dedup":
        low, high = ordered[:size], ordered[ordered.size - size :]
    else:
        low, high = np.full(size, ordered[0]), np.full(size, ordered[-1])
    for j in range(size + 1):
        yield (*high[size - j :][::-1].tolist(), *low[: size - j].tolist())


def _every(ordered: Floats, size: int, buffer: Buffer, tried: int) -> list[tuple[float, ...]]:
    """Return all buffers that differ in their scores, highest first; none if above `tried`."""
    distinct, counts = np.unique(ordered, return_counts=True)
    if distinct.size > tried:
        return []
    parts: list[tuple[float, ...]] = [()]
    rest = int(counts.sum()) if buffer == "dedup" else size * distinct.size
    for score, count in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        most = count if buffer == "dedup" else size
        rest -= most
        # The remaining scores must suffice for the empty slots.
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
    """Return the largest possible ρ: as many weights at the cap as fit, and one with the rest."""
    pinned = math.floor(1 / cap_at * (1 + 1e-12))
    rest = max(0.0, 1 - pinned * cap_at)
    return size * (pinned * cap_at**2 + rest**2)
