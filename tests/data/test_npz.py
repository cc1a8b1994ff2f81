from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraw.data.arrays import load_npz
from fedraw.errors import BadInput
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec

GOOD: dict[str, Any] = {"images": np.zeros((4, 2, 2), dtype=np.uint8), "labels": [0, 0, 1, 1]}


def load(path: Path) -> Any:
    return load_npz(path, np.random.default_rng(0))


def saved(folder: Path, **changes: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{k: v for k, v in (GOOD | changes).items() if v is not None})
    return path


def test_a_file_with_images_and_labels_is_enough(tmp_path: Path) -> None:
    data = load(saved(tmp_path))
    assert (data.name, data.classes, len(data.images), len(data.test_images)) == ("own", 2, 2, 2)


def test_labels_may_be_bytes(tmp_path: Path) -> None:
    data = load(saved(tmp_path, labels=np.array([0, 0, 2, 2], np.uint8)))
    assert (data.labels.tolist(), data.classes) == ([0, 2], 3)


def test_a_file_may_bring_its_test_set_and_its_names(tmp_path: Path) -> None:
    data = load(
        saved(
            tmp_path,
            labels=["nv", "nv", "df", "df"],
            test_images=GOOD["images"][:1],
            test_labels=["df"],
            label_names=["nv", "df"],
        )
    )
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 0, 1, 1], [1])


def test_without_names_the_holdout_is_repeatable(tmp_path: Path) -> None:
    path = saved(tmp_path, images=np.arange(4.0)[:, None])
    assert np.array_equal(load(path).test_images, load(path).test_images)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None}, "'labels' is missing.*found images"),
        ({"test_image": [1]}, "'test_image'; did you mean 'test_images'"),
        ({"labels": np.array([0, None], dtype=object)}, "'labels' cannot be read.*not objects"),
        ({"labels": [0, 1]}, r"labels \(2,\)"),
        ({"images": np.float32(7)}, r"images have shape \(\)"),
        ({"images": np.full((4, 1), np.nan)}, r"images\[0\].*finite"),
        ({"labels": [0, 0, 1, -3]}, r"labels\[3\] = -3"),
        ({"test_labels": [0]}, "give both"),
        ({"label_names": ["only one"]}, r"labels\[2\] = 1"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = saved(tmp_path, **changes)
    with pytest.raises(BadInput, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_labels_that_do_not_start_at_0_are_told_from_which_numbers_they_go(tmp_path: Path) -> None:
    spec = Spec.read(
        {
            "data": {"name": "npz", "path": str(saved(tmp_path, labels=[1, 1, 2, 2]))},
            "partition": {
                "clients": 2,
                "rare_labels": [2],
                "clients_per_rare_label": 1,
                "clients_per_common_label": 1,
            },
            "training": {"kind": "none"},
        }
    )
    with pytest.raises(BadInput, match=r"label number 0 has no training samples.*numbered 1, 2;"):
        Scenario.of(spec, 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.npz: No such file.*give the path"):
        load(tmp_path / "gone.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"not an \.npz file; write it with"):
        load(path)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(BadInput, match=r"not an \.npz file"):
        load(tmp_path / "one.npy")


def test_a_damaged_array_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, images=np.arange(4000.0).reshape(4, -1))
    content = bytearray(path.read_bytes())
    content[2000:2100] = b"x" * 100
    path.write_bytes(content)
    with pytest.raises(BadInput, match="'images' cannot be read"):
        load(path)
