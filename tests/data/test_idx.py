from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.data.releases_on_disk import Bytes, idx

from fedraw.data.emnist import read_idx
from fedraw.errors import BadInput

ANY_BYTES = arrays.arrays(np.uint8, arrays.array_shapes(max_dims=4, max_side=5, min_side=0))


@given(array=ANY_BYTES, packed=st.booleans())
def test_what_was_written_is_read(
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
