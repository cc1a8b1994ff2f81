from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.histograms import Counts, federations
from tests.privacy.laws import laplace_below

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.errors import BadInput
from fedraw.privacy.summaries import score_from_coverage, simulated_scores


@given(federations)
def test_scores_from_the_true_coverage_equal_the_servers_scores(counts: Counts) -> None:
    table = LabelTable.from_counts(counts)
    coverage = dict(zip(table.labels, table.coverage().tolist(), strict=True))
    own = [score_from_coverage(histogram, coverage) for histogram in counts.values()]
    assert own == pytest.approx(rarity_scores(table).tolist(), rel=1e-12)


def test_a_label_counted_zero_times_needs_no_coverage() -> None:
    assert score_from_coverage({"cat": 3, "dog": 0}, {"cat": 2.5}) == pytest.approx(0.4)


def test_a_held_label_without_coverage_is_refused_by_name() -> None:
    for coverage in ({"cat": 2}, {"cat": 2, "dog": 0}, {"cat": 2, "dog": math.nan}):
        with pytest.raises(BadInput, match="holds the label 'dog'"):
            score_from_coverage({"cat": 1, "dog": 1}, coverage)


@pytest.mark.parametrize("counts", [{}, {"cat": 0}])
def test_a_client_without_samples_has_no_score(counts: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="without samples"):
        score_from_coverage(counts, {"cat": 1})


@given(st.floats(0.1, 10), st.integers(1, 40), st.integers(-200, 200))
def test_the_ends_of_the_range_are_epsilon_apart(epsilon: float, steps: int, at: int) -> None:
    # On a coarser range of `steps`: the ratio of P(output) for the inputs 0 and `steps`, exactly.
    points = np.array([at, at - 1, at - steps, at - steps - 1], np.float64)
    below = laplace_below(points, steps / epsilon)
    from_zero, from_end = below[0] - below[1], below[2] - below[3]
    if min(from_zero, from_end) > 1e-6:  # else a difference of two ones
        assert abs(math.log(from_zero / from_end)) <= epsilon * (1 + 1e-6)


@given(st.lists(st.floats(-1, 3), min_size=1), st.integers(1, 50), st.sampled_from([1e-6, 1, 20]))
def test_a_noised_score_stays_in_the_range_of_scores(
    scores: list[float], clients: int, epsilon: float
) -> None:
    noised = simulated_scores(np.array(scores), clients, epsilon, np.random.default_rng(1))
    assert np.all((noised >= 1 / clients) & (noised <= 1))


def test_a_score_is_clipped_before_the_noise() -> None:
    # Otherwise two inputs would be further apart than the budget counts with.
    def noised(score: float) -> list[float]:
        rng = np.random.default_rng(4)
        return list(simulated_scores(np.full(500, score), 30, 2.0, rng))

    assert noised(1.9) == noised(1.0)
    assert noised(-0.5) == noised(0.0)
