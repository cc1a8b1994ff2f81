from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data.dataset import Images

TEN = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2)
rows = st.lists(st.integers(0, 9), max_size=12)


@given(rows, st.data())
def test_a_selection_of_a_selection_is_what_indexing_twice_gives(
    first: list[int], data: st.DataObject
) -> None:
    second = data.draw(st.lists(st.integers(0, len(first) - 1)) if first else st.just([]))
    chosen = Images(TEN).select(first).select(second)
    expected = TEN[np.array(first, int)][np.array(second, int)]
    assert len(chosen) == len(second)
    assert np.array_equal(chosen[:], expected)
    assert np.array_equal(np.asarray(chosen), expected)


def test_nothing_is_copied_by_a_selection() -> None:
    pixels = TEN.copy()
    chosen = Images(pixels).select([3])
    pixels[3] = 9
    assert chosen[:].tolist() == [[[[9, 9], [9, 9]]]]


@pytest.fixture
def mapped(tmp_path: Path) -> Images:
    np.save(tmp_path / "images.npy", TEN)
    return Images.open(tmp_path / "images.npy", sha256="stored")


def test_images_of_a_file_travel_as_its_name(mapped: Images) -> None:
    sent = pickle.dumps(mapped.select([7, 2]))
    assert len(sent) < 500  # ten thousand images would be no more
    arrived = pickle.loads(sent)
    assert arrived.in_a_file
    assert arrived.shape == (2, 1, 2, 2)
    assert np.array_equal(arrived[:], TEN[[7, 2]])
    assert arrived.sha256() == mapped.select([7, 2]).sha256()


def test_images_in_memory_travel_as_they_are() -> None:
    arrived = pickle.loads(pickle.dumps(Images(TEN, [1])))
    assert not arrived.in_a_file
    assert np.array_equal(arrived[:], TEN[[1]])


def test_what_is_read_of_a_file_is_a_plain_array(mapped: Images) -> None:
    assert type(mapped[:3]) is np.ndarray
    assert type(mapped.take([1])) is np.ndarray


def test_a_stored_fingerprint_still_tells_selections_apart(mapped: Images) -> None:
    prints = {
        images.sha256() for images in (mapped, mapped.select([0]), mapped.select([1]), Images(TEN))
    }
    assert len(prints) == 4
