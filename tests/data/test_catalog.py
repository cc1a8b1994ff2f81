from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedraw.data.catalog import load
from fedraw.data.digits import digits
from fedraw.errors import BadInput, MissingExtra


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_digits_are_complete_and_scaled() -> None:
    data = load("digits", rng=rng())
    assert (data.name, data.label_names) == ("digits", tuple("0123456789"))
    assert (len(data.images), len(data.test_images)) == (1438, 359)
    assert data.images.dtype == np.float32
    assert (data.images.min(), data.images.max()) == (0, 1)


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


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"fedraw\[sim\]"):
        digits(rng())
