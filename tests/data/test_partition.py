from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraw.core.types import Ints
from fedraw.data.partition import check_partition, dirichlet, iid, label_counts, split_local
from fedraw.errors import BadInput

SEEDS = st.integers(0, 2**32)


def used_once(parts: list[Ints], n: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def well_formed(parts: list[Ints]) -> bool:
    return all(p.dtype == np.int64 and len(p) and np.all(np.diff(p) > 0) for p in parts)


@settings(deadline=None)  # a busy machine is no failure
@given(seed=SEEDS, n=st.integers(1, 200), clients=st.integers(1, 30))
def test_iid_gives_equal_parts_of_everything(seed: int, n: int, clients: int) -> None:
    clients = min(clients, n)
    labels = np.zeros(n, dtype=np.int64)
    first, again = (iid(labels, 1, np.random.default_rng(seed), clients=clients) for _ in range(2))
    assert used_once(first, n)
    assert well_formed(first)
    assert np.ptp([len(part) for part in first]) <= 1
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@settings(deadline=None)  # a busy machine is no failure
@given(
    seed=SEEDS,
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=150),
    clients=st.integers(1, 20),
    alpha=st.floats(1e-3, 1e3),
    least=st.integers(1, 5),
)
def test_dirichlet_uses_every_sample_and_starves_nobody(
    seed: int, labels: list[int], clients: int, alpha: float, least: int
) -> None:
    clients = max(1, min(clients, len(labels) // least))
    least = min(least, len(labels))
    y = np.array(labels)

    def parts() -> list[Ints]:
        rng = np.random.default_rng(seed)
        return dirichlet(y, 5, rng, clients=clients, alpha=alpha, min_samples=least)

    first = parts()
    assert used_once(first, len(y))
    assert well_formed(first)
    assert min(len(part) for part in first) >= least
    assert all(np.array_equal(a, b) for a, b in zip(first, parts(), strict=True))


def test_a_large_alpha_spreads_evenly_and_a_small_one_does_not() -> None:
    labels = np.repeat(np.arange(4), 500)

    def spread(alpha: float) -> float:
        parts = dirichlet(labels, 4, np.random.default_rng(1), clients=5, alpha=alpha)
        return float(np.std([np.bincount(labels[p], minlength=4) for p in parts]))

    assert spread(1e6) < 2
    assert spread(0.05) > 100


def test_a_starving_client_is_fed_by_the_largest() -> None:
    labels = np.zeros(100, dtype=np.int64)
    rng = np.random.default_rng(0)
    parts = dirichlet(labels, 1, rng, clients=10, alpha=0.001, min_samples=3)
    assert sorted(len(part) for part in parts) == [3] * 9 + [73]


@settings(deadline=None)  # a busy machine is no failure
@given(seed=SEEDS, n=st.integers(1, 60), share=st.floats(0, 0.999))
def test_a_local_split_loses_nothing_and_keeps_one_for_training(
    seed: int, n: int, share: float
) -> None:
    indices = np.arange(n) * 3
    train, test = split_local(indices, share, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate([train, test])), indices)
    assert len(train) >= 1
    assert len(test) == min(round(n * share), n - 1)
    assert train.dtype == test.dtype == np.int64


def test_no_share_means_no_local_test() -> None:
    train, test = split_local(np.arange(4), 0.0, np.random.default_rng(0))
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [])


def test_counts_leave_out_labels_that_a_client_lacks() -> None:
    labels = np.array([0, 0, 2, 1])
    parts = [np.array([0, 1]), np.array([2, 3])]
    assert label_counts(labels, parts, ["a", "b", "c"]) == [{"a": 2}, {"b": 1, "c": 1}]


def test_a_users_partition_comes_back_sorted() -> None:
    parts = check_partition([[3, 1], np.array([0], np.int32), np.array([200], np.uint8)], n=300)
    assert [p.tolist() for p in parts] == [[1, 3], [0], [200]]
    assert well_formed(parts)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0], []], "client 1 .*at least one sample"),
        ([[0], [0.5]], "client 1 .*float64"),
        ([[0], [5]], "client 1 holds sample 5.*0 to 4"),
        ([[-1]], "client 0 holds sample -1"),
        ([[0, 1], [2, 1]], "sample 1 is held by client 0 and again by client 1"),
        ([[2, 2]], "sample 2 is held by client 0 and again by client 0"),
        ([], "clients = 0"),
    ],
)
def test_a_bad_partition_is_refused_by_client_and_sample(parts: list[Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_partition(parts, n=5)


def spread(**settings: Any) -> list[Ints]:
    rng = np.random.default_rng(0)
    return dirichlet(
        np.zeros(10, dtype=np.int64), 1, rng, **({"clients": 2, "alpha": 1} | settings)
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spread(alpha=0), "alpha = 0"),
        (lambda: spread(alpha=float("nan")), "alpha = nan"),
        (lambda: spread(alpha=1e308), r"alpha = 1e\+308 cannot be computed"),
        (lambda: spread(clients=0), "clients = 0"),
        (lambda: spread(clients=6, min_samples=2), "at most 5 clients"),
        (lambda: spread(min_samples=0), "min_samples = 0"),
        (lambda: iid(np.zeros(2, int), 1, np.random.default_rng(0), clients=3), "at most 2"),
        (lambda: split_local(np.arange(3), 1.0, np.random.default_rng(0)), "local_test = 1.0"),
    ],
)
def test_impossible_settings_are_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
