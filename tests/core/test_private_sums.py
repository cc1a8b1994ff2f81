"""Sums with noise: the bound of a sample, the law of the noise, exact totals, and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.linear_head import LinearHead, held_labels, noise_level, raised_inverse
from fedraw.core.private_sums import (
    FARTHEST,
    SHARES,
    Noise,
    SumsPrivacy,
    delta_of,
    noise_for,
)
from fedraw.core.sums import GRID, Sums, SumsShape, digest, is_multiple
from fedraw.core.types import Floats
from fedraw.errors import BadInput, RefusedUpdate

SHAPE = SumsShape(labels=3, features=5)
PRIVACY = SumsPrivacy(epsilon=2.0)
RNG = np.random.default_rng(3)


def message(privacy: SumsPrivacy = PRIVACY, seed: int = 0, count: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    payload = Sums(privacy=privacy)
    labels = rng.integers(0, 3, count)
    exact = payload.exact(SHAPE, rng.normal(size=(count, 5)), labels)
    return payload.sent(SHAPE, exact, rng)


# -- The bound of a sample ---------------------------------------------------------------------


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5),
    st.sampled_from([0.01, 0.3, 1.0, 7.0, 40.0]),
)
def test_one_sample_changes_a_message_by_at_most_one_unit_of_noise(
    sample: list[float], clip: float
) -> None:
    """The distance in units of each number's noise, times z, is the sensitivity: at most 1."""
    privacy = SumsPrivacy(1.0, clip=clip)
    payload = Sums(privacy=privacy)
    features = np.array([[0.5, -1.0, 2.0, 0.0, 1.0], sample])
    labels = np.array([0, 2])
    with_it = payload.exact(SHAPE, features, labels)
    without = payload.exact(SHAPE, features[:1], labels[:1])
    units = deviations(privacy) / privacy.multiplier
    assert np.sqrt((((with_it - without) / units) ** 2).sum()) <= 1 + 1e-12


def deviations(privacy: SumsPrivacy) -> Floats:
    """Return the standard deviation of the noise of each number of a message."""
    own = privacy.noise(SHAPE)
    units = np.full(SHAPE.layout.size, own.products / math.sqrt(2))
    units[: SHAPE.labels] = own.counts
    SHAPE.sums(units)[:] = own.sums
    SHAPE.triangle(units)[SHAPE.diagonal] = own.products
    return units


def test_a_sample_at_the_bound_uses_the_whole_sensitivity() -> None:
    """With B = 5, one sample of norm 5 changes counts by 1, sums by 5 and products by 25."""
    privacy = SumsPrivacy(1.0, clip=math.sqrt(5))
    changed = Sums(privacy=privacy).exact(SHAPE, np.array([[3.0, 4, 0, 0, 0]]), np.array([1]))
    units = deviations(privacy) / privacy.multiplier
    assert np.sqrt(((changed / units) ** 2).sum()) == pytest.approx(1.0)
    assert sum(SHARES) == pytest.approx(1.0)


def test_short_samples_stay_as_they_are_and_long_ones_keep_their_direction() -> None:
    features = np.array([[0.5, 0.25, 0, 0, 0], [6.0, 8.0, 0, 0, 0]])
    found = SumsPrivacy(1.0).clipped(SHAPE, features)
    assert found[0].tolist() == [0.5, 0.25, 0, 0, 0]
    assert is_multiple(found, GRID)
    assert np.linalg.norm(found[1]) <= math.sqrt(5)
    assert found[1] == pytest.approx([0.6 * math.sqrt(5), 0.8 * math.sqrt(5), 0, 0, 0], abs=GRID)


# -- The law of the noise ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_the_noise_is_the_least_that_the_budget_allows(epsilon: float, delta: float) -> None:
    noise = noise_for(epsilon, delta)
    assert delta_of(noise, epsilon) <= delta < delta_of(noise * (1 - 1e-6), epsilon)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_delta_is_the_integral_of_what_exceeds_epsilon(epsilon: float) -> None:
    """δ = ∫ max(0, p(x) − e^ε q(x)) dx for normal densities whose means are 1 apart."""
    noise = noise_for(epsilon, 1e-5)
    x = np.linspace(-12 * noise - 1, 12 * noise + 1, 2_000_001)
    p, q = (np.exp(-((x - mean) ** 2) / (2 * noise**2)) for mean in (1.0, 0.0))
    excess = np.maximum(0, p - math.exp(epsilon) * q) / (noise * math.sqrt(2 * math.pi))
    assert excess.sum() * (x[1] - x[0]) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_opendp_needs_at_most_a_fifth_more_epsilon_for_this_noise(epsilon: float) -> None:
    """OpenDP goes by zero-concentrated privacy, which is an upper bound of the exact epsilon."""
    pytest.importorskip("opendp")
    from fedraw.privacy.updates import UpdatePrivacy

    theirs = UpdatePrivacy(1.0, noise_for(epsilon, 1e-5), 1e-5).epsilon(1)
    assert epsilon <= theirs < 1.2 * epsilon


def test_every_number_has_noise_of_its_own_size() -> None:
    payload = Sums(privacy=SumsPrivacy(3.0, group=2))
    assert payload.privacy is not None
    zero = SHAPE.zeros()
    drawn = np.array([payload.sent(SHAPE, zero, np.random.default_rng(i)) for i in range(4000)])
    units = deviations(payload.privacy)
    assert units[0] == pytest.approx(2 * 1.3906 / math.sqrt(0.1), rel=1e-4)
    assert drawn.std(axis=0) == pytest.approx(units, rel=0.06)  # 5 deviations of the estimate
    assert (abs(drawn.mean(axis=0)) < 5 * units / math.sqrt(4000)).all()
    apart = np.corrcoef(drawn.T) - np.eye(len(units))
    assert abs(apart).max() < 6 / math.sqrt(4000)


# -- Totals ------------------------------------------------------------------------------------


@given(st.permutations(range(6)), st.integers(0, 5))
def test_totals_with_noise_are_exact_as_well(order: list[int], gone: int) -> None:
    parts = [message(seed=i) for i in range(6)]
    total = np.sum([parts[i] for i in order], axis=0)
    assert digest(total) == digest(np.sum(parts, axis=0))
    kept = np.sum([part for i, part in enumerate(parts) if i != gone], axis=0)
    assert digest(total - parts[gone] + 0.0) == digest(kept + 0.0)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_honest_messages_are_accepted(seed: int, epsilon: float) -> None:
    privacy = SumsPrivacy(epsilon)
    privacy.check(SHAPE, "a", message(privacy, seed, 1 + 20 * seed))


GOOD = message()
NOISE = PRIVACY.noise(SHAPE)


def changed(place: Any, value: float) -> Floats:
    found = GOOD.copy()
    found[place] = value
    return found


REFUSED = [
    (changed(0, 3.5), "counts that are not whole numbers"),
    (changed(0, -math.ceil(9 * NOISE.counts)), "counts below -.*, which the noise does not expl"),
    (changed(0, 4e7), "counts of up to 40,000,.* samples, more than 33,554,432"),
    (changed(3, GRID / 2), "sums that are not on the grid"),
    (changed(-1, GRID**2 / 2), "sums that are not on the grid"),
    (changed(3, 16384.0), "sums above 2.23607 a sample and the noise"),
    (changed(-2, 16384.0), "products above 5 a sample and the noise"),
    (changed(-1, -math.ceil(9 * NOISE.products)), "squares below -.*, which the noise does not"),
    (changed(18 + SHAPE.diagonal, 600.0), "norms above 2.23607 a sample and the noise"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED)
def test_messages_that_noise_does_not_explain_are_refused(wrong: Floats, words: str) -> None:
    with pytest.raises(RefusedUpdate, match=f"client 'a' sent {words}"):
        PRIVACY.check(SHAPE, "a", wrong)


def test_what_a_client_states_is_noisy_too() -> None:
    payload, sent = Sums(privacy=PRIVACY), message()
    assert payload.examples(SHAPE, sent, 40) == max(1, SHAPE.counts(sent).sum())
    assert not payload.declared
    assert Sums().declared
    assert Sums().examples(SHAPE, sent, 40) == 40
    assert FARTHEST * NOISE.counts > 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": 500.0}, "epsilon"),
    ({"epsilon": 1.0, "delta": 0.0}, "delta"),
    ({"epsilon": 1.0, "delta": 0.5}, "delta"),
    ({"epsilon": 1.0, "clip": 0.0}, "clip"),
    ({"epsilon": 1.0, "group": 0}, "group"),
]


@pytest.mark.parametrize(("settings", "name"), WRONG)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput, match=name):
        SumsPrivacy(**settings)


# -- The classifier ----------------------------------------------------------------------------


def test_labels_that_noise_may_have_made_are_left_out() -> None:
    totals = SHAPE.zeros()
    SHAPE.counts(totals)[:] = [21, 19, -4]
    assert held_labels(SHAPE, totals, Noise(10.0, 1.0, 1.0)).tolist() == [0]
    assert held_labels(SHAPE, totals, Noise(0.1, 1.0, 1.0)).tolist() == [0, 1]
    nobody = LinearHead().solve(SHAPE, totals, Noise(100.0, 1.0, 1.0))
    assert not nobody.any()


def test_the_level_of_noise_is_that_of_its_eigenvalues() -> None:
    rng, d = np.random.default_rng(0), 300
    drawn = np.triu(rng.normal(0, 2 / math.sqrt(2), (d, d)), 1)
    noise = drawn + drawn.T + np.diag(rng.normal(0, 2, d))
    found = math.sqrt(np.mean(np.linalg.eigvalsh(noise) ** 2))
    assert noise_level(Noise(1, 1, 2.0), d) == pytest.approx(found, rel=0.02)
    assert np.linalg.eigvalsh(raised_inverse(noise, 0.0, found)).min() > 0


@pytest.mark.parametrize("readout", ["discriminant", "ridge"])
def test_much_data_outweighs_the_noise(readout: Any) -> None:
    """30,000 samples of three labels: the classifier with noise agrees with that without."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 30_000)
    features = 0.4 * rng.normal(size=(30_000, 5)) + np.eye(3, 5)[labels]
    payload = Sums(privacy=SumsPrivacy(1.0, clip=4.0))
    assert payload.privacy is not None
    exact = payload.exact(SHAPE, features, labels)
    sent = payload.sent(SHAPE, exact, rng)
    head = LinearHead(readout=readout)
    plain, noisy = (
        head.solve(SHAPE, exact),
        head.solve(SHAPE, sent, payload.privacy.noise(SHAPE)),
    )
    best = [
        np.argmax(features @ own[:15].reshape(3, 5).T + own[15:], axis=1) for own in (plain, noisy)
    ]
    assert np.mean(best[0] == labels) > 0.85
    assert np.mean(best[0] == best[1]) > 0.97
