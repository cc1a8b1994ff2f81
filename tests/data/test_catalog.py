from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.releases_on_disk import lay_out_emnist, lay_out_ham10000

from fedraw.data.catalog import digits, load
from fedraw.errors import BadInput, MissingExtra


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_digits_are_complete_and_scaled() -> None:
    data = load("digits", rng=rng())
    assert (data.name, data.label_names) == ("digits", tuple("0123456789"))
    assert (len(data.images), len(data.test_images)) == (1438, 359)
    assert data.images.dtype == np.float32
    assert (data.images[:].min(), data.images[:].max()) == (0, 1)


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
def test_a_holdout_is_for_photographs(name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' takes no holdout.*for ham10000 and isic2019"):
        load(name, rng=rng(), holdout="random")


def test_labels_have_no_size() -> None:
    with pytest.raises(BadInput, match=r"'emnist-labels' has labels only.*leave size out"):
        load("emnist-labels", rng=rng(), size=14)


@pytest.mark.parametrize("name", ["emnist", "cifar10", "ham10000", "isic2019"])
def test_the_public_data_sets_need_a_data_root(name: str) -> None:
    with pytest.raises(BadInput, match=f"--data FOLDER or set FEDRAW_DATA.*data fetch {name}"):
        load(name, rng=rng())


def test_the_public_data_sets_have_no_path(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'cifar10' takes no path.*--data"):
        load("cifar10", path=tmp_path, rng=rng())


def test_the_data_root_may_stand_in_the_environment(
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
