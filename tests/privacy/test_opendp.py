"""The real mechanisms: OpenDP's accounting, and the same distribution as in simulations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.privacy.laws import answers, band, laplace_below, strays

from fedraw.privacy.summaries import (
    STEPS,
    bit_responder,
    noised_score,
    randomised_bits,
    score_noise,
    simulated_scores,
    truth_probability,
)

BUDGETS = [1e-6, 0.01, 0.1, 1 / 3, 1.0, 3.0, 5.0, 12.5, 20.0]


@pytest.fixture
def _opendp() -> None:
    pytest.importorskip("opendp")


@pytest.mark.usefixtures("_opendp")
@pytest.mark.parametrize("epsilon", BUDGETS)
def test_opendp_accounts_just_below_the_budget(epsilon: float) -> None:
    for spent in (bit_responder(epsilon).map(1), score_noise(epsilon).map(STEPS)):
        assert spent <= epsilon
        assert spent == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.usefixtures("_opendp")
def test_real_and_simulated_bits_have_the_same_distribution() -> None:
    runs, held = 1500, [True, True, False, False, False]
    bits = np.array(randomised_bits(held * runs, 1.0)).reshape(runs, 5)
    truths = bits == np.array(held)
    # The share of 7500 true answers, then the sums' law: test_response.py has the simulated ones'.
    assert abs(truths.mean() - truth_probability(1.0)) < band(truths.size)
    law = np.cumsum(answers(2, 5, 1.0))
    assert strays(bits.sum(axis=1).astype(float), np.arange(6.0), law) < band(runs)


@pytest.mark.usefixtures("_opendp")
def test_real_and_simulated_score_noise_have_the_same_distribution() -> None:
    runs, epsilon, score, clients = 1500, 4.0, 0.4, 30
    rng = np.random.default_rng(5)
    real = np.array([noised_score(score, clients, epsilon) for _ in range(runs)])
    simulated = simulated_scores(np.full(runs, score), clients, epsilon, rng)
    inside = np.linspace(1 / clients, 1, 50, endpoint=False)
    law = laplace_below(np.floor(inside * STEPS) - round(score * STEPS), STEPS / epsilon)
    assert strays(real, inside, law) < band(runs)
    assert strays(simulated, inside, law) < band(runs)
    assert min(real.min(), simulated.min()) == 1 / clients
    assert max(real.max(), simulated.max()) == 1


@pytest.mark.usefixtures("_opendp")
def test_real_noise_takes_no_seed() -> None:
    held = [True] * 200
    assert randomised_bits(held, 0.1) != randomised_bits(held, 0.1)  # equal once in 2^199


BARE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opendp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from fedraw.errors import MissingExtra
from fedraw.privacy import summaries
print(summaries.estimated_coverage([4], 8, 1.0).shape)
for use in (
    lambda: summaries.randomised_bits([True], 1.0),
    lambda: summaries.noised_score(0.5, 8, 1.0),
):
    try:
        use()
    except MissingExtra as missing:
        print(missing)
"""


def test_only_a_client_needs_the_extra_and_is_told_its_name() -> None:
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "(1,)",
        *["this needs opendp: pip install 'fedraw[privacy]'"] * 2,
    ], done.stderr
