"""The lemmas and steps of the convergence proof (section S-VIII), and where they do not hold.

The names follow the paper: D is the staleness displacement, P the pseudo-gradient, u the
fluctuation of the buffer's gradient around that of F̄, r what staleness and local steps change.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats
from fedraw.core.update import Update
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Arrived, Setup
from fedraw_studies.theory.bound import rho_of

numbers = st.floats(-50, 50, allow_subnormal=False)
positive = st.floats(0.01, 20)
vectors = arrays.arrays(np.float64, 3, elements=numbers)
several = arrays.arrays(np.float64, (4, 3), elements=numbers)
masses = arrays.arrays(np.float64, 4, elements=positive)
SLACK = 1e-6


def square(vector: Floats) -> float:
    return float(vector @ vector)


@given(several, masses, vectors, vectors, positive, positive)
@settings(max_examples=40)
def test_lemma_1_with_its_constant(
    apart: Floats, scores: Floats, gradient: Floats, pseudo: Floats, alpha: float, smooth: float
) -> None:
    """‖D‖² is at most the weighted mean; the D-terms are bounded with C_D = 1/α + L."""
    weights = scores / scores.sum()
    moved = weights @ apart
    assert square(moved) <= weights @ np.square(apart).sum(1) + SLACK
    terms = gradient @ moved + smooth / 2 * square(moved) - smooth * (moved @ pseudo)
    bound = alpha / 4 * square(gradient) + (1 / alpha + smooth) * square(moved)
    assert terms <= bound + smooth / 2 * square(pseudo) + SLACK * (1 + bound)


@given(several, vectors)
@settings(max_examples=40)
def test_lemma_2_and_what_is_true_already_without_its_factor_3(
    samples: Floats, other: Floats
) -> None:
    """E‖g‖² = σ_l² + ‖∇F_i‖² for an unbiased g, hence at most σ_l² + G."""
    mean = samples.mean(0)
    noise = float(np.square(samples - mean).sum(1).mean())
    moment = float(np.square(samples).sum(1).mean())
    assert moment == pytest.approx(noise + square(mean), abs=1e-6)
    largest = max(square(mean), square(other))  # G bounds this client and another
    assert moment <= 2 * noise + 2 * largest + SLACK <= 3 * (noise + largest) + 2 * SLACK


@given(vectors, vectors)
@settings(max_examples=40)
def test_the_descent_term_loses_half_to_the_residual(gradient: Floats, residual: Floats) -> None:
    """−⟨∇F̄, ∇F̄ + r⟩ ≤ −½‖∇F̄‖² + ½‖r‖²: the step from T1 to T3."""
    t1 = -gradient @ (gradient + residual)
    assert t1 <= -square(gradient) / 2 + square(residual) / 2 + SLACK


@pytest.mark.parametrize("seed", range(10))
def test_the_buffer_is_unbiased_at_a_model_that_does_not_depend_on_it(seed: int) -> None:
    """Σ π = 1, E[Σ w g] = Σ π g, and σ_B² ≤ G without the factor 4ρ, over all buffers of 3 of 5."""
    rng = np.random.default_rng(seed)
    rates, scores = rng.exponential(size=5) + 0.01, rng.exponential(size=5) + 0.01
    gradients = rng.normal(size=(5, 3)) * rng.exponential(size=(5, 1))
    buffers = [list(own) for own in combinations(range(5), 3)]
    chances = np.array([math.prod(rates[own]) for own in buffers])
    chances /= chances.sum()
    weights = [scores[own] / scores[own].sum() for own in buffers]
    means = np.array([w @ gradients[own] for w, own in zip(weights, buffers, strict=True)])
    influence = np.zeros(5)
    for chance, w, own in zip(chances, weights, buffers, strict=True):
        influence[own] += chance * w
    assert influence.sum() == pytest.approx(1)
    objective = influence @ gradients
    assert chances @ means == pytest.approx(objective, abs=1e-8)
    largest = np.square(gradients).sum(1).max()
    variance = float(chances @ np.square(means - objective).sum(1))
    assert variance <= largest + SLACK
    assert all(1 - 1e-9 <= rho_of(scores[own].tolist()) <= 3 + 1e-9 for own in buffers)


def scalar_run(
    buffer: int, pulls: Floats, order: list[int], step: float, *, quadratic: bool
) -> tuple[Floats, list[list[int]]]:
    """Run FedRAW on one number; a client steps to its optimum, or by a fixed amount.

    Returns the model before each aggregation and whose updates were aggregated.
    """
    clients = [f"client {i}" for i in range(len(pulls))]
    table = LabelTable.from_counts({client: {"label": 1} for client in clients})
    strategy = FedRAW(buffer=buffer)
    state, _ = strategy.start(Setup(np.zeros(1, np.float32), table))
    handed = dict.fromkeys(clients, (0.0, 0))
    models, inside = [], []
    for i in order:
        start, version = handed[clients[i]]
        gradient = start - pulls[i] if quadratic else -pulls[i]
        vector = np.array([start - step * gradient], np.float32)
        before, was = float(state.model[0]), state.version
        update = Update(clients[i], version, vector, 1)
        state, _ = strategy.step(state, Arrived(update))
        handed[clients[i]] = (float(state.model[0]), state.version)
        if state.version > was:
            models.append(before)
            inside.append([clients.index(str(c)) for c in state.contents.clients])
    return np.array(models), inside


def test_the_fluctuation_is_not_mean_zero_along_a_run() -> None:
    """E u = 0 needs a model independent of the buffer; the model is made of the same buffer.

    Three clients pull towards 0, 0 and 3; two of them are in the buffer. The model leans towards
    those that are in it, so the buffer's gradient is smaller than that of F̄, and ⟨∇F̄, u⟩ < 0.
    """
    pulls = np.array([0.0, 0.0, 3.0])
    order = np.random.default_rng(1).integers(3, size=4000).tolist()
    models, inside = scalar_run(2, pulls, order, 0.5, quadratic=True)
    objective = models - pulls.mean()  # all clients have the influence 1/3
    buffered = models - np.array([pulls[own].mean() for own in inside])
    products = objective * (buffered - objective)
    error = np.std([own.mean() for own in np.split(products[-3900:], 30)]) / math.sqrt(30)
    assert products.mean() < -5 * error
    assert products.mean() < -0.2 * np.square(objective).mean()


def test_the_drift_bound_is_an_assumption_that_a_buffer_of_one_breaks() -> None:
    """With K = 1 each client is handed its own model: two lineages that never mix.

    Gradients are −1 and +1, staleness is one version, and yet the models drift apart for ever.
    """
    step = 0.1
    models, _ = scalar_run(1, np.array([1.0, -1.0]), [0, 1] * 200, step, quadratic=False)
    psi = 3 * 1**2 * step**2 * (0 + 1 + 1)  # Q = 1, β = η², σ_g² = G = 1, no noise
    drift = np.square(np.diff(models))
    assert drift[2] > psi
    assert drift[-1] > 1000 * psi


def test_with_two_slots_the_same_clients_stay_together() -> None:
    models, _ = scalar_run(2, np.array([1.0, -1.0]), [0, 1] * 200, 0.1, quadratic=False)
    assert np.square(np.diff(models)).max() < 3 * 0.1**2 * 2


def test_the_split_of_t2_leaves_out_what_local_steps_change() -> None:
    """‖P‖² is compared with α²‖∇F‖² at the global model; along a concave loss it is larger."""
    size, steps = 1 / 40, 10  # L = 1: the largest rate that the theorem admits
    point, pseudo = 1.0, 0.0
    for _ in range(steps):
        gradient = -point  # F = −½ x²
        pseudo += size * gradient
        point -= size * gradient
    assert pseudo**2 / (size * steps) ** 2 == pytest.approx(1.255, abs=1e-3)


@pytest.mark.parametrize(("steps", "rho", "fits"), [(1, 1, True), (3, 1, True), (4, 1, False)])
def test_the_mean_residual_folds_into_the_variance_for_few_local_steps(
    steps: int, rho: float, fits: bool
) -> None:
    """L (β + α²) σ_B² ≤ 4 ρ L β G with σ_B² ≤ G needs Q ≤ 4ρ − 1; with 4ρG it never holds."""
    size, largest = 0.01, 1.0
    alpha, beta = steps * size, steps * size**2
    assert ((beta + alpha**2) * largest <= 4 * rho * beta * largest + 1e-15) is fits
    assert (beta + alpha**2) * 4 * rho * largest > 4 * rho * beta * largest


def test_the_net_coefficient_of_the_descent() -> None:
    """−α/2 + α/4 + (L/2) α² ≤ −α/8 at L α = ¼; with the doubled coefficient L nothing is left."""
    alpha, smooth = 0.25, 1.0
    assert -alpha / 4 + smooth / 2 * alpha**2 == pytest.approx(-alpha / 8)
    assert -alpha / 4 + smooth * alpha**2 == pytest.approx(0)
