"""Client sizes, weights and updates, by hand and against the paper's sentences."""

from __future__ import annotations

import pytest

from fedraw.experiment.spec import Spec
from fedraw_studies.federations import federation_facts, federation_outcome, load_federations


def test_sizes_are_what_the_partition_gives() -> None:
    # 5,000 images of a label: a rare label's on 2 clients, a common one's on 20; a fifth is set
    # aside. A rare client has 2,000 of its rare label and 200 of each common label that it holds.
    (row,) = (row for row in load_federations().rows if row.label == "CIFAR-10")
    for seed in (42, 7):
        facts = federation_facts(row.spec, seed)
        assert (facts["RareLeast"] - 2000) % 200 == (facts["RareMost"] - 2000) % 200 == 0
        everyone = 4 * facts["RareSize"] + 26 * facts["CommonSize"]
        assert everyone == pytest.approx(0.8 * 50_000)
        assert facts["RareShare"] == pytest.approx(100 * 4 / 30)


def test_updates_follow_from_the_speeds_alone() -> None:
    # All 30 clients are alike at equal speeds.
    spec = Spec.from_dict(
        {
            "data": {"name": "emnist-labels"},
            "partition": {"rare_labels": [44, 45, 46]},
            "speeds": {"kind": "equal"},
            "training": {"kind": "none"},
            "run": {"events": 3000},
        }
    )
    facts = federation_facts(spec, 1)
    assert facts["RareUpdates"] == pytest.approx(100)
    assert facts["RareShare"] == pytest.approx(20)


def test_every_sentence_of_the_paper_lies_among_our_seeds() -> None:
    found = [own for row in federation_outcome().rows for own in row.metrics.values()]
    assert [(own.row, own.metric) for own in found if own.inside is False] == []
    assert sum(own.inside is True for own in found) == 10
