"""Clipping, noise and the accountant of updates on the server."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from fedraw.errors import BadInput
from fedraw.privacy.updates import UpdatePrivacy

RNG = np.random.default_rng(1)


def test_a_short_update_is_not_clipped() -> None:
    change = np.array([0.3, 0.4], np.float32)
    assert UpdatePrivacy(1.0, 0.0).protect(change, RNG).tolist() == pytest.approx([0.3, 0.4])
    assert UpdatePrivacy(1.0, 0.0).protect(0 * change, RNG).tolist() == [0, 0]


def test_noise_has_the_clipping_norm_as_its_unit() -> None:
    noised = UpdatePrivacy(2.0, 0.5).protect(np.zeros(100_000, np.float32), RNG)
    assert noised.std() == pytest.approx(1.0, rel=0.02)
    assert noised.dtype == np.float32


def test_protect_does_not_modify_its_input() -> None:
    change = np.array([6, 8], np.float32)
    UpdatePrivacy(5.0, 1.0).protect(change, RNG)
    assert change.tolist() == [6, 8]


@pytest.mark.parametrize(("noise", "updates"), [(1.0, 1), (1.0, 10), (4.0, 10), (2.0, 50)])
def test_epsilon_is_slightly_above_the_exact_value(noise: float, updates: int) -> None:
    """The exact delta(epsilon) of n Gaussian mechanisms (Balle and Wang, 2018)."""
    pytest.importorskip("opendp")
    mu, epsilon = sqrt(updates) / noise, UpdatePrivacy(1.0, noise).epsilon(updates)

    def delta(eps: float) -> float:
        tail = norm.logcdf(-mu / 2 - eps / mu)
        return float(norm.cdf(mu / 2 - eps / mu) - exp(eps + tail))

    assert delta(epsilon) <= 1e-5
    assert delta(0.9 * epsilon) > 1e-5
    assert epsilon <= mu**2 / 2 + mu * sqrt(2 * log(1e5))  # the textbook's conversion


def test_without_noise_nothing_is_private() -> None:
    assert UpdatePrivacy(1.0, 0.0).epsilon(1) == inf
    assert UpdatePrivacy(1.0, 0.01).epsilon(1) == inf  # more than floats hold
    assert UpdatePrivacy(1.0, 1.0).epsilon(0) == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip = 0.0 must be a positive number"),
        ({"clip": 1.0, "noise": -1.0}, "noise = -1.0 must be at least 0"),
        ({"clip": 1.0, "noise": inf}, "noise = inf must be a finite number"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta = 1.0 must be between 0 and 1"),
    ],
)
def test_invalid_update_privacy_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        UpdatePrivacy(**wrong)
