from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedraw.data.catalog import Histogram, labels_only, load
from fedraw.errors import BadInput
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Parts, Scenario
from fedraw.experiment.spec import Spec


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "labels", "samples", "test"),
    [
        ("emnist-labels", 47, 112_800, 0),
        ("cifar10-labels", 10, 50_000, 0),
        ("ham10000-labels", 7, 10_015, 2_003),
        ("isic2019-labels", 8, 25_331, 5_066),
    ],
)
def test_the_releases_have_their_official_sizes(
    name: str, labels: int, samples: int, test: int
) -> None:
    data = load(name, rng=rng())
    assert (data.name, data.classes, data.has_images) == (name, labels, False)
    assert (len(data.labels) + len(data.test_labels), len(data.test_labels)) == (samples, test)


def test_the_paper_s_rare_labels_are_there_by_name() -> None:
    skin = load("ham10000-labels", rng=rng())
    counts = np.bincount([*skin.labels, *skin.test_labels])
    assert [counts[i] for i in skin.label_indices(["df", "vasc", "nv"])] == [115, 142, 6705]
    cat, dog = load("cifar10-labels", rng=rng()).label_indices(["cat", "dog"])
    assert (cat, dog) == (3, 5)


def test_what_is_held_out_is_drawn_from_all_samples_and_differs_by_seed() -> None:
    held = [load("ham10000-labels", rng=np.random.default_rng(seed)).test_labels for seed in (1, 2)]
    rare = [np.bincount(test, minlength=7)[3] for test in held]
    assert rare[0] != rare[1]
    assert all(10 < count < 40 for count in rare)  # a fifth of 115 is 23


def test_nothing_is_held_out_unless_asked() -> None:
    data = labels_only("pets", Histogram({"cat": 2, "dog": 1}), rng())
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 0, 1], [])


@pytest.mark.parametrize(
    ("histogram", "words"),
    [
        (Histogram({"cat": -1}), "label 'cat': count -1 is negative"),
        (Histogram({"cat": 0}), "has no images"),
        (Histogram({"cat": 3}, holdout=1.0), "holdout = 1.0 is not a share"),
    ],
)
def test_impossible_histograms_are_refused(histogram: Histogram, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        labels_only("pets", histogram, rng())


def test_there_is_no_file_to_name() -> None:
    with pytest.raises(BadInput, match="'emnist-labels' takes no path"):
        load("emnist-labels", path=Path("emnist.npz"), rng=rng())


def test_labels_alone_cannot_be_trained_on() -> None:
    spec = Spec.read(
        {"data": {"name": "emnist-labels"}, "partition": {"rare_labels": [44]}, "training": {}}
    )
    with pytest.raises(BadInput, match=r"labels and no images.*training.kind = 'none'"):
        Scenario.of(spec, 1)


def test_a_run_without_training_needs_no_images() -> None:
    spec = Spec.read(
        {
            "partition": {
                "clients": 4,
                "rare_labels": ["dog"],
                "clients_per_rare_label": 1,
                "clients_per_common_label": 2,
                "local_test": 0.0,
            },
            "strategy": {"buffer": 2},
            "training": {"kind": "none"},
            "run": {"events": 50, "seeds": [1]},
        }
    )
    pets = labels_only("pets", Histogram({"cat": 8, "cow": 8, "dog": 3}), rng())
    clients = Scenario.of(spec, 1, Parts(data=pets)).clients
    assert clients.rare == {0}
    assert clients.table.totals().sum() == 19
    summary = run_seed(spec, 1, parts=Parts(data=pets)).summary
    assert summary["events"] == 50
    assert 0 < summary["metrics"]["BufPres"] < 100


def test_the_paper_s_client_sizes_come_out() -> None:
    spec = Spec.read(
        {
            "data": {"name": "cifar10-labels"},
            "partition": {"rare_labels": [0, 6]},
            "training": {"kind": "none"},
        }
    )
    totals = Scenario.of(spec, 1).clients.table.totals()
    # 8 common labels on 20 clients each, 250 samples a piece, of which 200 stay in local training.
    assert totals[:4].min() >= 2000
    assert np.isclose(totals.sum(), 40_000, rtol=0.001)
