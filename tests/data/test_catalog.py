from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.releases_on_disk import lay_out_emnist, lay_out_ham10000

from fedraw.data.catalog import Histogram, digits, labels_only, load
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_digits_are_complete_and_scaled() -> None:
    data = load("digits", rng=rng())
    assert (data.name, data.label_names) == ("digits", tuple("0123456789"))
    assert (len(data.inputs), len(data.test_inputs)) == (1438, 359)
    assert data.inputs.dtype == np.float32
    assert (data.inputs[:].min(), data.inputs[:].max()) == (0, 1)


def test_each_digit_is_held_out_in_proportion() -> None:
    data = digits(rng(), holdout=0.5)
    share = np.bincount(data.test_labels) / np.bincount([*data.labels, *data.test_labels])
    assert np.abs(share - 0.5).max() < 0.01


def test_npz_is_read_from_its_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.eye(4), labels=[0, 1, 0, 1])
    assert load("npz", path=tmp_path / "mine.npz", rng=rng()).name == "mine"


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("digit", None, "unknown dataset 'digit'; did you mean 'digits'"),
        ("npz", None, "'npz' needs a path"),
        ("digits", Path("own.npz"), "did you mean 'npz'"),
    ],
)
def test_impossible_choices_are_refused(name: str, path: Path | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load(name, path=path, rng=rng())


@pytest.mark.parametrize("name", ["digits", "npz", "ham10000-labels", "emnist", "cifar10"])
def test_holdout_is_refused_for_other_data_than_photographs(name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' takes no holdout.*for ham10000 and isic2019"):
        load(name, rng=rng(), holdout="random")


def test_datasets_of_labels_refuse_a_size() -> None:
    with pytest.raises(BadInput, match=r"'emnist-labels' has no images.*leave size out"):
        load("emnist-labels", rng=rng(), size=14)


@pytest.mark.parametrize("name", ["emnist", "cifar10", "ham10000", "isic2019", "flights"])
def test_public_datasets_need_a_data_root(name: str) -> None:
    with pytest.raises(BadInput, match=f"data_root=... or set FEDRAW_DATA.*data fetch {name}"):
        load(name, rng=rng())


def test_public_datasets_refuse_a_path(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'cifar10' takes no path.*data_root"):
        load("cifar10", path=tmp_path, rng=rng())


def test_the_data_root_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out_emnist(tmp_path)
    monkeypatch.setenv("FEDRAW_DATA", str(tmp_path))
    assert load("emnist", rng=rng()).classes == 47
    with pytest.raises(BadInput, match="gone is not a folder"):
        load("emnist", root=tmp_path / "gone", rng=rng())  # what is given comes first


def test_without_pillow_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out_ham10000(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"fedraw\[data\]"):
        load("ham10000", root=tmp_path, rng=rng())


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"fedraw\[sim\]"):
        digits(rng())


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
    assert (data.name, data.classes, data.has_inputs) == (name, labels, False)
    assert (len(data.labels) + len(data.test_labels), len(data.test_labels)) == (samples, test)


def test_releases_have_the_rare_labels_of_the_paper() -> None:
    skin = load("ham10000-labels", rng=rng())
    counts = np.bincount([*skin.labels, *skin.test_labels])
    assert [counts[i] for i in skin.label_indices(["df", "vasc", "nv"])] == [115, 142, 6705]
    cat, dog = load("cifar10-labels", rng=rng()).label_indices(["cat", "dog"])
    assert (cat, dog) == (3, 5)


def test_the_test_set_is_drawn_from_all_samples_and_differs_by_seed() -> None:
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
        (Histogram({"cat": 0}), "has no training samples"),
        (Histogram({"cat": 3}, holdout=1.0), "holdout = 1.0 is not a share"),
    ],
)
def test_impossible_histograms_are_refused(histogram: Histogram, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        labels_only("pets", histogram, rng())


def test_datasets_of_labels_refuse_a_path() -> None:
    with pytest.raises(BadInput, match="'emnist-labels' takes no path"):
        load("emnist-labels", path=Path("emnist.npz"), rng=rng())


def test_labels_alone_cannot_be_trained_on() -> None:
    spec = Spec.from_dict(
        {"data": {"name": "emnist-labels"}, "partition": {"rare_labels": [44]}, "training": {}}
    )
    with pytest.raises(BadInput, match=r"labels and no inputs.*training.kind = 'none'"):
        Scenario.of(spec, 1)


def test_a_run_without_training_needs_no_images() -> None:
    spec = Spec.from_dict(
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


def test_clients_have_the_sizes_of_the_paper() -> None:
    spec = Spec.from_dict(
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
