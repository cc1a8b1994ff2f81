"""The convergence theorem's bound on the mean squared gradient of F̄, term by term.

8 F̄*/(αT) + 24 L² Q β (τ² + 1) σ² + ρ (8 L β/α) (σ_l²/K + 4G) + C σ² τ²
α = Σ_q η_q,   β = Σ_q η_q²,   σ² = σ_l² + σ_g² + G
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fedraw.errors import BadInput


@dataclass(frozen=True)
class Constants:
    """What the theorem assumes; steps may be one size for all local steps, or one for each."""

    gap: float  # F̄*: how far F̄ of the first model is above its infimum
    smoothness: float  # L
    local_variance: float  # σ_l²: of a stochastic gradient around its client's
    heterogeneity: float  # σ_g²: of the clients' gradients around their mean
    gradient_bound: float  # G: of every client's squared gradient norm
    local_steps: int  # Q
    steps: float | tuple[float, ...]  # η
    worst_staleness: float  # τ_max, in versions
    rho: float  # K sup Σ w², from 1 to K
    buffer: int  # K
    aggregations: int  # T
    drift: float | None = None  # C_drift; None: what the supplement's proof gives

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
            raise BadInput(f"rho = {self.rho:g} is no K Σ w²; it lies from 1 to K = {self.buffer}")
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
        if isinstance(self.steps, tuple):
            return self.steps
        return (float(self.steps),) * self.local_steps

    @property
    def alpha(self) -> float:
        return math.fsum(self.sizes)

    @property
    def beta(self) -> float:
        return math.fsum(size * size for size in self.sizes)

    @property
    def variance(self) -> float:
        """σ²."""
        return self.local_variance + self.heterogeneity + self.gradient_bound

    @property
    def drift_constant(self) -> float:
        """C: as given, or 24 Q (β/α) (1/α + L), which is 24 (1 + L α) for equal steps."""
        if self.drift is not None:
            return self.drift
        ratio = self.local_steps * self.beta / self.alpha
        return 24 * ratio * (1 / self.alpha + self.smoothness)


@dataclass(frozen=True)
class Bound:
    """The four terms; the first three vanish as T grows, the last does not."""

    optimisation: float
    drift_and_staleness: float
    weighting_noise: float
    drift_floor: float
    gradient_bound: float  # G, which the theorem assumes of every client, and so of F̄

    @property
    def total(self) -> float:
        return (
            self.optimisation + self.drift_and_staleness + self.weighting_noise + self.drift_floor
        )

    @property
    def informative(self) -> bool:
        """Whether it says more than the assumption ‖∇F_i‖² ≤ G, from which ‖∇F̄‖² ≤ G follows."""
        return self.total < self.gradient_bound


def convergence_bound(of: Constants) -> Bound:
    """The theorem's right-hand side.

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
    """The largest η that the theorem admits: 1/(4 L Q).

    >>> largest_step(smoothness=2, local_steps=5)
    0.025
    """
    return 1 / (4 * smoothness * local_steps)


def diminishing_step(aggregations: int, local_steps: int, scale: float = 1.0) -> float:
    """η = c/√(T Q), under which all but the floor vanish; small enough once T ≥ 16 c² L² Q.

    >>> diminishing_step(aggregations=400, local_steps=4, scale=2)
    0.05
    """
    if aggregations < 1 or local_steps < 1 or not 0 < scale < math.inf:
        raise BadInput(
            f"T = {aggregations}, Q = {local_steps}, c = {scale:g} give no step; "
            "all must be above 0"
        )
    return scale / math.sqrt(aggregations * local_steps)
