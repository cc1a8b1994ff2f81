from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.errors import BadInput
from fedraw_studies.theory.bound import Constants, convergence_bound, largest_step

HAND = Constants(
    gap=3,
    smoothness=2,
    local_variance=5,
    heterogeneity=1,
    gradient_bound=4,
    local_steps=2,
    steps=0.05,
    worst_staleness=3,
    rho=2,
    buffer=10,
    aggregations=100,
    drift=0.1,
)


def test_every_term_by_hand() -> None:
    # α = 0.1, β = 0.005, σ² = 10
    bound = convergence_bound(HAND)
    assert bound.optimisation == pytest.approx(8 * 3 / (0.1 * 100))
    assert bound.drift_and_staleness == pytest.approx(24 * 4 * 2 * 0.005 * 10 * 10)
    assert bound.weighting_noise == pytest.approx(2 * 8 * 2 * 0.05 * (0.5 + 16))
    assert bound.drift_floor == pytest.approx(0.1 * 10 * 9)
    assert bound.total == pytest.approx(2.4 + 96 + 26.4 + 9)


def test_steps_may_differ() -> None:
    unequal = replace(HAND, steps=(0.06, 0.02))
    assert (unequal.alpha, unequal.beta) == pytest.approx((0.08, 0.004))
    assert convergence_bound(replace(HAND, steps=(0.05, 0.05))) == convergence_bound(HAND)


def test_only_the_noise_knows_the_weights() -> None:
    uniform, rare = (convergence_bound(replace(HAND, rho=rho)) for rho in (1, 2))
    assert rare.weighting_noise == pytest.approx(2 * uniform.weighting_noise)
    assert rare.total - uniform.total == pytest.approx(uniform.weighting_noise)


@given(st.integers(1, 50), st.floats(0.01, 10), st.floats(0.01, 1))
def test_what_the_proof_gives_for_the_drift(steps: int, smooth: float, part: float) -> None:
    size = part * largest_step(smooth, steps)
    c = replace(HAND, drift=None, local_steps=steps, smoothness=smooth, steps=size)
    assert c.drift_constant == pytest.approx(24 * (1 + smooth * steps * size))
    assert 24 <= c.drift_constant <= 30 * (1 + 1e-9)


def test_that_constant_leaves_nothing_to_know() -> None:
    # ‖∇F̄‖² ≤ G is assumed; a floor of at least 24 σ² τ² lies above it.
    assert not convergence_bound(replace(HAND, drift=None, worst_staleness=1)).informative
    fresh = replace(
        HAND,
        drift=None,
        worst_staleness=0,
        local_variance=0.01,
        smoothness=0.01,
        aggregations=10**6,
        rho=1,
    )
    assert convergence_bound(fresh).informative


def test_the_schedule_makes_all_but_the_floor_vanish() -> None:
    terms = []
    for rounds in (10**4, 10**6):
        step = 0.5 / math.sqrt(rounds * HAND.local_steps)
        terms.append(convergence_bound(replace(HAND, steps=step, aggregations=rounds)))
    early, late = terms
    assert late.optimisation == pytest.approx(early.optimisation / 10)
    assert late.weighting_noise == pytest.approx(early.weighting_noise / 10)
    assert late.drift_and_staleness == pytest.approx(early.drift_and_staleness / 100)
    assert late.drift_floor == early.drift_floor


def test_the_schedule_is_admissible_from_some_t_on() -> None:
    smooth, steps, scale = 2.0, 5, 0.7
    enough = math.ceil(16 * scale**2 * smooth**2 * steps)
    assert scale / math.sqrt(enough * steps) <= largest_step(smooth, steps)
    assert scale / math.sqrt((enough - 1) * steps) > largest_step(smooth, steps)


def test_a_step_too_large_is_refused_with_the_largest() -> None:
    with pytest.raises(BadInput, match=r"step 0\.07 breaks .* at most 0\.0625"):
        replace(HAND, steps=0.07)
    with pytest.raises(BadInput, match=r"at most 0\.0625"):
        replace(HAND, steps=(0.01, 0.07))
    assert replace(HAND, steps=0.0625).alpha == 0.125


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 0.5}, "rho = 0.5"),
        ({"rho": 11}, "from 1 to K = 10"),
        ({"steps": (0.01,)}, "1 sizes for 2 local steps"),
        ({"steps": 0.0}, "above 0"),
        ({"gap": -1}, "gap = -1"),
        ({"heterogeneity": math.nan}, "heterogeneity = nan"),
        ({"smoothness": 0}, "smoothness = 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(HAND, **change)  # type: ignore[arg-type]
