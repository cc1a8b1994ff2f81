"""`fedraw reproduce bound`: the theorem's constants, terms and lemmas on a run on digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from fedraw.experiment.cells import cores
from fedraw.experiment.spec import Spec
from fedraw_studies.markdown import pipe_table
from fedraw_studies.theory.bound import Bound, convergence_bound
from fedraw_studies.theory.measured_bound import Measured, measure, record

SEED = 42
# More seeds for the dependence of buffer and model, at the usual rate.
MORE_SEEDS = (123, 456)
# The rate of the demo, which the theorem does not admit.
USUAL_RATE = 0.1
EVENTS = 3000


@dataclass(frozen=True)
class BoundReport:
    """The same federation at the usual rate and at the largest that the theorem admits."""

    usual: Measured
    admitted: Measured
    bound: Bound  # at the admitted rate
    more: Mapping[int, Measured] = field(default_factory=dict)  # at the usual rate, by seed

    @classmethod
    def make(cls, events: int = EVENTS) -> BoundReport:
        """Run both and evaluate the theorem at the admitted rate."""
        usual = measure(record(bound_spec(USUAL_RATE, events), SEED))
        admitted = measure(record(bound_spec(usual.admissible_rate, events), SEED))
        more = {seed: measure(record(bound_spec(USUAL_RATE, events), seed)) for seed in MORE_SEEDS}
        return cls(usual, admitted, convergence_bound(admitted.constants()), more)

    def markdown(self) -> str:
        """Write the constants, the terms, and the quantities of the proof next to their bounds."""
        made = (
            f"`fedraw reproduce bound`, {date.today()}, {cores()} cores: FedRAW on digits, softmax "
            f"regression, 30 clients, K = {self.admitted.buffer}, correlated speeds, one local "
            f"epoch in batches of 16, {self.admitted.aggregations:,} aggregations, seed {SEED}.\n"
        )
        parts = [made, self._constants(), self._terms(), self._proof()]
        if self.more:
            said = [
                f"{_dependence(own)} of {short(own.gradient)} (seed {seed})"
                for seed, own in self.more.items()
            ]
            parts.append(f"Other seeds at η = {USUAL_RATE:g}: mean ⟨∇F̄, u⟩ is {', '.join(said)}.\n")
        return "\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured, and the terms."""
        terms = {**asdict(self.bound), "total": self.bound.total}
        more = {str(seed): asdict(own) for seed, own in self.more.items()}
        both = {"usual": asdict(self.usual), "admitted": asdict(self.admitted)}
        return {**both, "bound": terms, "more_seeds": more}

    def _constants(self) -> str:
        lines = [
            [symbol, how, short(value(self.admitted)), short(value(self.usual))]
            for symbol, how, value in _CONSTANTS
        ]
        return pipe_table(["constant", "value used", *self._rates()], lines, padded=False)

    def _terms(self) -> str:
        own, bound = self.admitted, self.bound
        terms = [
            ("optimisation", "8 F̄*/(α T)", bound.optimisation),
            ("local drift and staleness", "24 L² Q β (τ² + 1) σ²", bound.drift_and_staleness),
            ("weighting noise", "ρ (8 L β/α) (σ_l²/K + 4 G)", bound.weighting_noise),
            ("drift floor", "C σ² τ², with C = 24 (1 + L α)", bound.drift_floor),
            ("**bound**", "their sum", bound.total),
            ("**measured**", "mean ‖∇F̄‖² over the run", own.gradient),
            ("assumed bound", "G", own.gradient_bound),
            ("floor as measured", "8 (1/α + L)/α · mean ‖D‖², instead of Ψ", _floor(own)),
        ]
        lines = [[name, formula, short(value)] for name, formula, value in terms]
        return pipe_table(["term", "", self._rates()[0]], lines, padded=False)

    def _proof(self) -> str:
        lines = []
        for name, claimed, value, limit in _PROOF:
            both = [f"{value(own)} of {short(limit(own))}" for own in (self.admitted, self.usual)]
            lines.append([name, claimed, *both])
        return pipe_table(["quantity", "the proof", *self._rates()], lines, padded=False)

    def _rates(self) -> list[str]:
        return [f"η = {self.admitted.rate:.5f}", f"η = {self.usual.rate:g}"]


def bound_spec(rate: float, events: int) -> Spec:
    """Make the spec of the runs: softmax regression, whose loss is smooth, on digits."""
    return Spec.from_dict(
        {
            "data": {"name": "digits"},
            "partition": {"rare_labels": [8, 9]},
            "training": {"model": "linear", "lr": rate, "epochs": 1, "batch": 16},
            "run": {"events": events},
        }
    )


def short(value: float) -> str:
    """Write a number with three significant digits.

    >>> short(0.15892), short(46437817.5), short(2990), short(0.0000312)
    ('0.159', '4.64e+07', '2990', '3.12e-05')
    """
    if value == int(value) and abs(value) < 1e5:
        return f"{value:.0f}"
    return f"{value:.3g}"


Of = Callable[[Measured], float]


def _sigma2(own: Measured) -> float:
    return own.local_variance + own.heterogeneity + own.gradient_bound


def _drift(own: Measured) -> float:
    """Return Ψ = 3 Q τ² β σ²."""
    return own.worst_staleness**2 * _step_square(own)


def _step_square(own: Measured) -> float:
    """Return 3 Q β σ², with β = Q η²."""
    return 3 * (own.local_steps * own.rate) ** 2 * _sigma2(own)


def _dependence(own: Measured) -> str:
    return f"{own.dependence:.3f} ± {own.dependence_error:.3f}".replace("-", "−")


def _floor(own: Measured) -> float:
    """Return the drift floor with the measured displacement instead of its bound Ψ."""
    alpha = own.local_steps * own.rate
    return 8 * (1 / alpha + own.smoothness) / alpha * own.displacement


_CONSTANTS: Sequence[tuple[str, str, Of]] = (
    ("F̄*", "F̄ of the first model, which is at least F̄* because F̄ ≥ 0", lambda m: m.gap),
    ("F̄, last model", "for comparison", lambda m: m.loss[1]),
    ("L", "½ λ_max of a client's inputs, maximum over clients", lambda m: m.smoothness),
    ("L, observed", "largest curvature at the models of the run", lambda m: m.curvature),
    ("σ_l²", "largest variance of a mini-batch gradient", lambda m: m.local_variance),
    ("σ_g²", "largest mean ‖∇F_i − ∇f‖²", lambda m: m.heterogeneity),
    ("G", "largest ‖∇F_i‖²", lambda m: m.gradient_bound),
    ("Q", "local steps of the largest client", lambda m: m.local_steps),
    (
        "Q, least",
        "local steps of the smallest client; the theorem has one Q",
        lambda m: m.fewest_steps,
    ),
    ("4 L Q η", "the theorem admits at most 1", lambda m: m.rate / m.admissible_rate),
    ("τ_max", "oldest update in an aggregation, in versions", lambda m: m.worst_staleness),
    ("τ, mean", "for comparison", lambda m: m.mean_staleness),
    ("ρ", "supremum over all buffers (reached)", lambda m: m.rho),
)


# The measured quantity, the proof's statement, our value as text, and the proof's limit.
_PROOF: Sequence[tuple[str, str, Callable[[Measured], str], Of]] = (
    ("mean ‖D‖²", "at most Ψ = 3 Q τ² β σ² (Lemma 1)", lambda m: short(m.displacement), _drift),
    ("largest ‖D‖²", "at most Ψ", lambda m: short(m.worst_displacement), _drift),
    (
        "largest drift ‖θ(t) − θ(t−τ)‖²",
        "at most Ψ (assumed)",
        lambda m: short(m.worst_drift),
        _drift,
    ),
    (
        "mean ‖P̃‖²",
        "at most 3 Q β σ² (steps b and c)",
        lambda m: short(m.pseudo_gradient),
        _step_square,
    ),
    (
        "largest E‖g_i‖²",
        "at most 3 σ² (Lemma 2)",
        lambda m: short(m.second_moment),
        lambda m: 3 * _sigma2(m),
    ),
    (
        "largest ‖u‖²",
        "σ_B² ≤ 4 ρ G",
        lambda m: short(m.worst_buffer_variance),
        lambda m: 4 * m.rho * m.gradient_bound,
    ),
    (
        "mean ⟨∇F̄, u⟩",
        "0; the descent is mean ‖∇F̄‖²",
        _dependence,
        lambda m: m.gradient,
    ),
)
