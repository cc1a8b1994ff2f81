from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.releases_on_disk import lay_out_cifar10, scene

from fedraw.data.catalog import load
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput


def cifar10(root: Path) -> Dataset:
    return load("cifar10", root=root, rng=np.random.default_rng(0))


def test_the_images_and_labels_are_read(tmp_path: Path) -> None:
    lay_out_cifar10(tmp_path)
    data = cifar10(tmp_path)
    assert (data.inputs.shape, data.test_inputs.shape) == ((100, 3, 32, 32), (20, 3, 32, 32))
    assert data.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.label_names[3] == "cat"
    assert np.array_equal(data.inputs[3:4][0], scene(3))
    assert data.inputs[3:4][0, :, 0, 31].tolist() == [60, 100, 7]


def test_the_folder_itself_may_be_the_root(tmp_path: Path) -> None:
    assert len(cifar10(lay_out_cifar10(tmp_path)).inputs) == 100


def test_the_most_complete_folder_is_chosen(tmp_path: Path) -> None:
    for file in lay_out_cifar10(tmp_path, per_batch=10).iterdir():
        file.rename(tmp_path / file.name)
    (lay_out_cifar10(tmp_path) / "data_batch_4.bin").unlink()
    assert len(cifar10(tmp_path).inputs) == 50


def test_pickled_batches_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(
        BadInput, match=r"pickled batches, which fedraw read up to version 0\.2.*fetch cifar10"
    ):
        cifar10(tmp_path)
