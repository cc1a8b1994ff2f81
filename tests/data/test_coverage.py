from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraw.core.types import Ints
from fedraw.data.partition import coverage
from fedraw.errors import BadInput


@dataclass(frozen=True)
class Case:
    """A setting that can be met, and a seed."""

    seed: int
    labels: Ints
    classes: int
    keys: dict[str, Any]

    def parts(self) -> list[Ints]:
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
def test_rare_labels_sit_on_their_own_first_clients(case: Case) -> None:
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
        ({"clients_per_common_label": 6}, "clients_per_common_label = 6 of 5.*from 1 to 5"),
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
