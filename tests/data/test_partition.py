from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraw.core.types import Ints
from fedraw.data.partition import (
    check_partition,
    coverage,
    dirichlet,
    iid,
    label_counts,
    shuffle_labels,
    split_local,
)
from fedraw.data.ragged import Ragged
from fedraw.errors import BadInput

SEEDS = st.integers(0, 2**32)


def used_once(parts: Sequence[Ints], n: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def well_formed(parts: Sequence[Ints]) -> bool:
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
def test_dirichlet_uses_every_sample_and_leaves_no_client_empty(
    seed: int, labels: list[int], clients: int, alpha: float, least: int
) -> None:
    clients = max(1, min(clients, len(labels) // least))
    least = min(least, len(labels))
    y = np.array(labels)

    def parts() -> Sequence[Ints]:
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


def test_a_client_with_too_few_samples_receives_some_of_the_largest() -> None:
    labels = np.zeros(100, dtype=np.int64)
    rng = np.random.default_rng(0)
    parts = dirichlet(labels, 1, rng, clients=10, alpha=0.001, min_samples=3)
    assert sorted(len(part) for part in parts) == [3] * 9 + [73]


@settings(deadline=None)  # a busy machine is no failure
@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    share=st.floats(0, 0.999),
)
def test_a_local_split_uses_every_sample_and_keeps_one_for_training(
    seed: int, sizes: list[int], share: float
) -> None:
    ends = np.cumsum([0, *sizes])
    clients = Ragged.of(np.arange(a, b) * 3 for a, b in itertools.pairwise(ends))
    train, test = split_local(clients, share, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    for own, kept, held in zip(clients, train, test, strict=True):
        assert len(held) == min(round(len(own) * share), len(own) - 1)
        shuffled = rng.permutation(own)  # one client after the other
        assert held.tolist() == sorted(shuffled[: len(held)])
        assert kept.tolist() == sorted(shuffled[len(held) :])


def test_a_share_of_0_gives_no_local_test_set() -> None:
    train, test = split_local(Ragged.of([np.arange(4)]), 0.0, np.random.default_rng(0))
    assert (train[0].tolist(), test[0].tolist()) == ([0, 1, 2, 3], [])


@given(
    owners=st.lists(st.integers(-1, 4), max_size=30), arrays=st.lists(st.lists(st.integers(0, 9)))
)
def test_ragged_equals_a_list_of_arrays(owners: list[int], arrays: list[list[int]]) -> None:
    found = Ragged.by_owner(np.array(owners, np.int64), 5)
    expected = [[i for i, own in enumerate(owners) if own == client] for client in range(5)]
    assert [part.tolist() for part in found] == expected
    ragged = Ragged.of(arrays)
    assert [part.tolist() for part in ragged] == arrays
    assert [part.tolist() for part in ragged.sorted()] == [sorted(part) for part in arrays]
    assert ragged.owners().tolist() == [i for i, part in enumerate(arrays) for _ in part]
    with pytest.raises(IndexError):
        ragged[len(arrays)]


def test_counts_leave_out_labels_that_a_client_lacks() -> None:
    labels = np.array([0, 0, 2, 1])
    parts = [np.array([0, 1]), np.array([2, 3])]
    assert label_counts(labels, parts, ["a", "b", "c"]) == [{"a": 2}, {"b": 1, "c": 1}]


def test_a_users_partition_comes_back_sorted() -> None:
    parts = check_partition([[3, 1], np.array([0], np.int32), np.array([200], np.uint8)], n=300)
    assert {c: p.tolist() for c, p in parts.items()} == {0: [1, 3], 1: [0], 2: [200]}
    assert well_formed(list(parts.values()))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0], []], "client 1 .*no samples; give it at least one"),
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


def spread(**settings: Any) -> Sequence[Ints]:
    rng = np.random.default_rng(0)
    return dirichlet(
        np.zeros(10, dtype=np.int64), 1, rng, **({"clients": 2, "alpha": 1} | settings)
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spread(alpha=0), "alpha = 0"),
        (lambda: spread(alpha=float("nan")), "alpha = nan"),
        (lambda: spread(alpha=1e308), r"alpha = 1e\+308 is out of range"),
        (lambda: spread(clients=0), "clients = 0"),
        (lambda: spread(clients=6, min_samples=2), "at most 5 clients"),
        (lambda: spread(min_samples=0), "min_samples = 0"),
        (lambda: iid(np.zeros(2, int), 1, np.random.default_rng(0), clients=3), "at most 2"),
        (lambda: split_local(Ragged.of([[0]]), 1.0, np.random.default_rng(0)), "local_test = 1.0"),
    ],
)
def test_impossible_settings_are_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


@dataclass(frozen=True)
class Case:
    """Settings that are possible, and a seed."""

    seed: int
    labels: Ints
    classes: int
    keys: dict[str, Any]

    def parts(self) -> Sequence[Ints]:
        rng = np.random.default_rng(self.seed)
        return coverage(self.labels, self.classes, rng, **self.keys)

    def tallies(self) -> Ints:
        return np.array([np.bincount(self.labels[p], minlength=self.classes) for p in self.parts()])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    classes = draw(st.integers(1, 6))
    rare = draw(st.lists(st.integers(0, classes - 1), unique=True))
    per_rare = draw(st.integers(1, 3))
    dedicated, common = len(rare) * per_rare, classes - len(rare)
    clients = draw(st.integers(max(1, dedicated), dedicated + 8)) if common else dedicated
    # Clients without a rare label need a common one each, or nothing can repair the draw.
    least = max(1, -(-(clients - dedicated) // common)) if common else 1
    per_common = draw(st.integers(least, clients))
    needed = [per_rare if k in rare else per_common for k in range(classes)]
    counts = [n + draw(st.integers(0, 7)) for n in needed]
    labels = np.repeat(np.arange(classes), counts)
    keys = {
        "clients": clients,
        "rare_labels": rare,
        "clients_per_rare_label": per_rare,
        "clients_per_common_label": per_common,
    }
    return Case(draw(st.integers(0, 2**32)), labels, classes, keys)


@settings(deadline=None)  # a busy machine is no failure
@given(cases())
def test_every_sample_is_used_once_and_no_client_is_empty(case: Case) -> None:
    parts = case.parts()
    assert len(parts) == case.keys["clients"]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(case.labels)))
    assert all(p.dtype == np.int64 and len(p) and np.all(np.diff(p) > 0) for p in parts)


@settings(deadline=None)  # a busy machine is no failure
@given(cases())
def test_each_label_is_on_exactly_as_many_clients_as_asked(case: Case) -> None:
    held = (case.tallies() > 0).sum(axis=0)
    for label, holders in enumerate(held.tolist()):
        kind = "rare" if label in case.keys["rare_labels"] else "common"
        assert holders == case.keys[f"clients_per_{kind}_label"]


@settings(deadline=None)  # a busy machine is no failure
@given(cases())
def test_rare_labels_are_on_the_first_clients(case: Case) -> None:
    tallies, m = case.tallies(), case.keys["clients_per_rare_label"]
    for turn, label in enumerate(case.keys["rare_labels"]):
        assert np.flatnonzero(tallies[:, label]).tolist() == list(range(turn * m, (turn + 1) * m))


@settings(deadline=None)  # a busy machine is no failure
@given(cases())
def test_a_label_is_split_equally(case: Case) -> None:
    for column in case.tallies().T:
        assert np.ptp(column[column > 0]) <= 1


@settings(deadline=None)  # a busy machine is no failure
@given(cases())
def test_one_seed_gives_one_partition(case: Case) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(case.parts(), case.parts(), strict=True))


def test_the_size_of_the_papers_clients_on_cifar() -> None:
    labels = np.repeat(np.arange(10), 5000)
    keys = {"clients_per_rare_label": 2, "clients_per_common_label": 20}
    rng = np.random.default_rng(42)
    parts = coverage(labels, 10, rng, clients=30, rare_labels=[0, 6], **keys)
    tallies = np.array([np.bincount(labels[p], minlength=10) for p in parts])
    assert tallies[:2, 0].tolist() == tallies[2:4, 6].tolist() == [2500, 2500]
    assert set(np.unique(tallies[:, 1])) == {0, 250}


def test_common_labels_reach_rare_clients_too() -> None:
    labels = np.repeat(np.arange(5), 40)
    keys = {"clients_per_rare_label": 2, "clients_per_common_label": 10}
    parts = coverage(labels, 5, np.random.default_rng(0), clients=10, rare_labels=[4], **keys)
    assert np.unique(labels[parts[0]]).tolist() == [0, 1, 2, 3, 4]


def test_an_idle_client_takes_over_a_common_label() -> None:
    # One rare client and three others for three assignments of label 0: only one draw in four
    # misses the rare client, all others must be repaired.
    labels = np.repeat([0, 1], [30, 10])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        keys = {"clients_per_rare_label": 1, "clients_per_common_label": 3}
        parts = coverage(labels, 2, rng, clients=4, rare_labels=[1], **keys)
        assert [np.bincount(labels[p], minlength=2).tolist() for p in parts] == [
            [0, 10],
            [10, 0],
            [10, 0],
            [10, 0],
        ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rare_labels": [0, 1], "clients_per_rare_label": 3}, "2 rare labels on 3 .* need 6"),
        ({"clients_per_common_label": 6}, "6 must be from 1 to .* = 5; set it"),
        ({"clients_per_common_label": 0}, "clients_per_common_label = 0"),
        ({"clients_per_rare_label": 0}, "clients_per_rare_label = 0"),
        ({"clients": 0}, "clients = 0"),
        ({"rare_labels": [4]}, "rare label 4 is unknown.*0 to 3"),
        ({"rare_labels": [-1]}, "rare label -1"),
        ({"rare_labels": [1, 1], "clients_per_rare_label": 1}, "rare label 1 is listed twice"),
        ({"clients_per_common_label": 4}, "label 2 has 3 samples for 4 clients.*at most 3"),
        ({"clients_per_common_label": 1, "clients": 9}, "9 clients are too many for 4 labels"),
        (
            {"classes": 5},
            r"label number 4 has no training samples.*numbered 0, 1, 2, 3; number the labels",
        ),
    ],
)
def test_impossible_coverage_is_refused(changes: dict[str, Any], words: str) -> None:
    keys: dict[str, Any] = {
        "labels": np.repeat([0, 1, 2, 3], [9, 9, 3, 9]),
        "classes": 4,
        "rng": np.random.default_rng(0),
        "clients": 5,
        "rare_labels": [3],
        "clients_per_rare_label": 2,
        "clients_per_common_label": 3,
    }
    with pytest.raises(BadInput, match=words):
        coverage(**(keys | changes))


LABELS = st.lists(st.integers(0, 5), max_size=60).map(lambda own: np.array(own, np.int64))


@given(LABELS, st.floats(0, 1), st.integers(0, 99))
def test_label_noise_keeps_counts_and_changes_at_most_the_share(
    labels: np.ndarray, share: float, seed: int
) -> None:
    mixed = shuffle_labels(labels, share, np.random.default_rng(seed))
    assert sorted(mixed.tolist()) == sorted(labels.tolist())
    assert int((mixed != labels).sum()) <= round(share * labels.size)


def test_shuffling_half_of_two_equal_labels_changes_a_quarter() -> None:
    labels = np.repeat([0, 1], 5_000)
    mixed = shuffle_labels(labels, 0.5, np.random.default_rng(3))
    assert 0.23 < float((mixed != labels).mean()) < 0.27


def test_label_noise_does_not_change_its_argument() -> None:
    labels = np.arange(100)
    shuffle_labels(labels, 1.0, np.random.default_rng(0))
    assert labels.tolist() == list(range(100))
