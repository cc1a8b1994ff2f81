from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.releases_on_disk import lay_out_cifar10, python2_pickle, scene

from fedraw.data.catalog import load
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput


def cifar10(root: Path) -> Dataset:
    return load("cifar10", root=root, rng=np.random.default_rng(0))


@pytest.mark.parametrize("form", ["bin", "py"])
def test_both_forms_give_the_same_images(tmp_path: Path, form: str) -> None:
    lay_out_cifar10(tmp_path, form)
    data = cifar10(tmp_path)
    assert (data.inputs.shape, data.test_inputs.shape) == ((100, 3, 32, 32), (20, 3, 32, 32))
    assert data.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.label_names[3] == "cat"
    assert np.array_equal(data.inputs[3:4][0], scene(3))
    assert data.inputs[3:4][0, :, 0, 31].tolist() == [60, 100, 7]


def test_the_folder_itself_may_be_the_root(tmp_path: Path) -> None:
    assert len(cifar10(lay_out_cifar10(tmp_path)).inputs) == 100


def test_the_most_complete_form_is_chosen(tmp_path: Path) -> None:
    (lay_out_cifar10(tmp_path, "bin") / "data_batch_4.bin").unlink()
    lay_out_cifar10(tmp_path, "py", per_batch=10)
    assert len(cifar10(tmp_path).inputs) == 50


def test_differences_from_the_official_release_are_noted(tmp_path: Path) -> None:
    lay_out_cifar10(tmp_path)
    assert cifar10(tmp_path).notes == (
        "cifar10: 100 train images, official 50,000",
        "cifar10: 20 test images, official 10,000",
    )


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    (lay_out_cifar10(tmp_path) / "data_batch_3.bin").unlink()
    with pytest.raises(BadInput, match=r"lacks data_batch_3\.bin in .*fetch cifar10"):
        cifar10(tmp_path)


def test_without_any_file_the_error_lists_the_folders(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lacks data_batch_1\.bin.*cifar-10-batches-py"):
        cifar10(tmp_path)


@pytest.mark.parametrize("keep", [0, 3072, 30_000])
def test_a_truncated_batch_is_refused(tmp_path: Path, keep: int) -> None:
    file = lay_out_cifar10(tmp_path) / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BadInput, match=rf"has {keep:,} bytes.*official file has 30,730,000"):
        cifar10(tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    file = lay_out_cifar10(tmp_path) / "data_batch_2.bin"
    content = bytearray(file.read_bytes())
    content[2 * 3073] = 10
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"data_batch_2\.bin: image 2 has label 10.*0 to 9"):
        cifar10(tmp_path)


class Hostile:
    """Creates a folder if it is unpickled without care."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    batch = lay_out_cifar10(tmp_path, "py") / "data_batch_1"
    content = {b"data": Hostile(tmp_path / "was here"), b"labels": []}
    batch.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(BadInput, match=r"data_batch_1: asks to run posix\.mkdir.*delete the file"):
        cifar10(tmp_path)
    assert not (tmp_path / "was here").exists()
    pickle.loads(batch.read_bytes())
    assert (tmp_path / "was here").exists()  # so the test tests something


ROWS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({b"labels": [1, 2]}, r"its data are object of shape \(\)"),
        ({b"data": ROWS[:, :9], b"labels": [1, 2]}, r"uint8 of shape \(2, 9\), not uint8 of"),
        ({b"data": ROWS.astype(float), b"labels": [1, 2]}, "its data are float64"),
        ({b"data": ROWS, b"labels": [1]}, r"2 images, but labels of shape \(1,\)"),
        ({b"data": ROWS, b"labels": [1, 10]}, "image 1 has label 10"),
        ({b"data": ROWS, b"labels": [1, -1]}, "image 1 has label -1"),
    ],
)
def test_impossible_batches_are_refused(
    tmp_path: Path, content: dict[bytes, Any], words: str
) -> None:
    (lay_out_cifar10(tmp_path, "py") / "data_batch_1").write_bytes(python2_pickle(content))
    with pytest.raises(BadInput, match=words):
        cifar10(tmp_path)


def test_a_truncated_or_wrong_pickle_is_refused(tmp_path: Path) -> None:
    file = lay_out_cifar10(tmp_path, "py") / "data_batch_1"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(BadInput, match="not a complete pickle; it has 5,000 bytes"):
        cifar10(tmp_path)
    file.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(BadInput, match="contains a list, not a batch"):
        cifar10(tmp_path)


def test_a_batch_saved_again_by_python_3_is_read(tmp_path: Path) -> None:
    for file in lay_out_cifar10(tmp_path, "py").iterdir():
        batch = pickle.loads(file.read_bytes(), encoding="bytes")
        file.write_bytes(pickle.dumps({k.decode(): v for k, v in batch.items()}, protocol=2))
    assert np.array_equal(cifar10(tmp_path).inputs[3:4][0], scene(3))
