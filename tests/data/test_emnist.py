from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.data.releases_on_disk import Bytes, character, idx, lay_out_emnist

from fedraw.data.catalog import load
from fedraw.data.dataset import Dataset
from fedraw.data.image_files import read_idx
from fedraw.errors import BadInput

IMAGES = "emnist-balanced-train-images-idx3-ubyte"
LABELS = "emnist-balanced-train-labels-idx1-ubyte"


def emnist(root: Path) -> Dataset:
    return load("emnist", root=root, rng=np.random.default_rng(0))


def test_images_are_upright(tmp_path: Path) -> None:
    lay_out_emnist(tmp_path)
    data = emnist(tmp_path)
    assert data.inputs.shape == (94, 1, 28, 28)
    assert data.inputs.dtype == np.uint8
    assert np.array_equal(data.inputs[7:8][0, 0], character(7))
    assert (data.inputs[:1][0, 0, 1, 2], data.inputs[:1][0, 0, 2, 1]) == (255, 0)


def test_labels_and_the_official_split_are_kept(tmp_path: Path) -> None:
    lay_out_emnist(tmp_path, train=2, test=1)
    data = emnist(tmp_path)
    assert data.label_names == tuple(str(number) for number in range(47))
    assert data.labels.tolist() == [*range(47), *range(47)]
    assert data.test_labels.tolist() == [*range(47)]


@pytest.mark.parametrize("folder", ["EMNIST/raw", "EMNIST/raw/gzip", "gzip", "EMNIST/gzip", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_files_are_found_in_the_folders_of_common_tools(
    tmp_path: Path, folder: str, packed: bool
) -> None:
    lay_out_emnist(tmp_path, folder=folder, packed=packed, train=1)
    assert len(emnist(tmp_path).inputs) == 47


ANY_BYTES = arrays.arrays(np.uint8, arrays.array_shapes(max_dims=4, max_side=5, min_side=0))


@given(array=ANY_BYTES, packed=st.booleans())
def test_reading_returns_the_written_array(
    tmp_path_factory: pytest.TempPathFactory, array: Bytes, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    read = read_idx(path, axes=array.ndim)
    assert read.shape == array.shape
    assert np.array_equal(read, array)


GOOD = idx(np.zeros((2, 3), np.uint8))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing.*00 00 08 02"),
        (b"<html>no such file</html>", "begins with 3c 68 74 6d"),
        (idx(np.zeros(6, np.uint8)), "begins with 00 00 08 01.*2 axes"),
        (b"\0\0\x0d" + GOOD[3:], "begins with 00 00 0d 02"),
        (GOOD[:8], "begins with 00 00 08 02"),
        (GOOD[:-1], r"has 17 bytes, but its header promises 18 \(2 x 3\); download it again"),
        (GOOD + b"!", "has 19 bytes.*promises 18"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "labels-idx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"labels-idx: {words}"):
        read_idx(path, axes=2)


@pytest.mark.parametrize(
    "content", [gzip.compress(GOOD, mtime=0)[:-3], GOOD, b"", b"\x1f\x8b broken"]
)
def test_a_broken_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "labels-idx.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"labels-idx\.gz: .*download it again"):
        read_idx(path, axes=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone: No such file"):
        read_idx(tmp_path / "gone", axes=1)
