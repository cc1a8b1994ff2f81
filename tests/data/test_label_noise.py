"""Labels mixed up: as many of each as before, and no more wrong than asked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data.partition import shuffle_labels

LABELS = st.lists(st.integers(0, 5), max_size=60).map(lambda own: np.array(own, np.int64))


@given(LABELS, st.floats(0, 1), st.integers(0, 99))
def test_the_counts_stay_and_no_more_are_wrong_than_the_share(
    labels: np.ndarray, share: float, seed: int
) -> None:
    mixed = shuffle_labels(labels, share, np.random.default_rng(seed))
    assert sorted(mixed.tolist()) == sorted(labels.tolist())
    assert int((mixed != labels).sum()) <= round(share * labels.size)


def test_half_of_two_equal_labels_mixed_up_makes_a_quarter_wrong() -> None:
    labels = np.repeat([0, 1], 5_000)
    mixed = shuffle_labels(labels, 0.5, np.random.default_rng(3))
    assert 0.23 < float((mixed != labels).mean()) < 0.27


def test_the_labels_given_are_left_alone() -> None:
    labels = np.arange(100)
    shuffle_labels(labels, 1.0, np.random.default_rng(0))
    assert labels.tolist() == list(range(100))
