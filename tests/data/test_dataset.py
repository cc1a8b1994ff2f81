from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedraw.data
from fedraw.data.dataset import Dataset, Inputs
from fedraw.errors import BadInput


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def toy(**changes: Any) -> Dataset:
    images = np.zeros((3, 1, 2, 2), dtype=np.float32)
    whole = {
        "name": "toy",
        "inputs": images,
        "labels": np.array([0, 1, 1]),
        "test_inputs": images[:1],
        "test_labels": np.array([1]),
        "label_names": ("cat", "dog"),
    }
    parts: dict[str, Any] = whole | changes
    parts |= {key: Inputs(parts[key]) for key in ("inputs", "test_inputs")}
    return Dataset(**parts)


def with_nan() -> np.ndarray[Any, np.dtype[np.float32]]:
    images = np.zeros((3, 1, 2, 2), dtype=np.float32)
    images[2, 0, 1, 1] = np.nan
    return images


def test_a_dataset_knows_its_classes_and_shape() -> None:
    assert (toy().classes, toy().input_shape) == (2, (1, 2, 2))


def test_a_dataset_may_lack_a_test_set() -> None:
    empty = np.zeros((0, 1, 2, 2), dtype=np.float32)
    assert len(toy(test_inputs=empty, test_labels=np.array([], dtype=np.int64)).test_labels) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.array([0, 1])}, r"labels \(2,\).*one label for each"),
        ({"labels": np.array([0, 1, 2])}, r"labels\[2\] = 2.*0 to 1"),
        ({"test_labels": np.array([-1])}, r"test_labels\[0\] = -1"),
        ({"inputs": with_nan()}, r"^inputs\[2\].*not a finite"),
        ({"inputs": np.zeros((0, 1, 2, 2), dtype=np.float32)}, "no training samples"),
        ({"inputs": np.full((3, 1, 2, 2), "x")}, "<U1.*from_arrays"),
        ({"inputs": np.zeros(3, dtype=np.float32)}, r"shape \(3,\)"),
        ({"inputs": np.zeros((), dtype=np.float32)}, r"inputs have shape \(\)"),
        ({"test_inputs": np.zeros((1, 4), dtype=np.float32)}, "give both the same shape"),
        ({"label_names": ("cat", "cat")}, "'cat' twice"),
    ],
)
def test_a_bad_dataset_is_refused_with_the_name_of_the_array(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        toy(**changes)


def test_labels_are_found_by_name_and_by_number() -> None:
    assert toy().label_indices(["dog", 0, "cat"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("label", "words"), [("dgo", "did you mean 'dog'"), (2, "0 to 1"), (-1, "0 to 1")]
)
def test_an_unknown_label_is_refused_with_a_remedy(label: int | str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        toy().label_indices([label])


def test_the_fingerprint_depends_on_the_content_and_not_on_the_storage() -> None:
    images = np.arange(12, dtype=np.float32).reshape(3, 1, 2, 2)
    everything = Inputs(np.concatenate([images[::-1], images]))
    same = Dataset(
        "toy",
        everything.select([3, 4, 5]),
        np.array([0, 1, 1]),
        everything.select([3]),
        np.array([1]),
        ("cat", "dog"),
    )
    assert same.sha256() == toy(inputs=images, test_inputs=images[:1]).sha256()
    assert same.sha256() != toy(inputs=images[::-1], test_inputs=images[:1]).sha256()
    assert same.sha256() != toy(inputs=images, test_inputs=images[1:2]).sha256()


TEN = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2)
rows = st.lists(st.integers(0, 9), max_size=12)


@given(rows, st.data())
def test_a_selection_of_a_selection_equals_indexing_twice(
    first: list[int], data: st.DataObject
) -> None:
    second = data.draw(st.lists(st.integers(0, len(first) - 1)) if first else st.just([]))
    chosen = Inputs(TEN).select(first).select(second)
    expected = TEN[np.array(first, int)][np.array(second, int)]
    assert len(chosen) == len(second)
    assert np.array_equal(chosen[:], expected)
    assert np.array_equal(np.asarray(chosen), expected)


def test_a_selection_copies_nothing() -> None:
    pixels = TEN.copy()
    chosen = Inputs(pixels).select([3])
    pixels[3] = 9
    assert chosen[:].tolist() == [[[[9, 9], [9, 9]]]]


@pytest.fixture
def mapped(tmp_path: Path) -> Inputs:
    np.save(tmp_path / "images.npy", TEN)
    return Inputs(np.load(tmp_path / "images.npy", mmap_mode="r"), sha256="stored")


def test_mapped_inputs_are_pickled_as_their_location(mapped: Inputs) -> None:
    sent = pickle.dumps(mapped.select([7, 2]))
    assert len(sent) < 500  # ten thousand images would be no more
    arrived = pickle.loads(sent)
    assert arrived.is_mapped
    assert arrived.shape == (2, 1, 2, 2)
    assert np.array_equal(arrived[:], TEN[[7, 2]])
    assert arrived.sha256() == mapped.select([7, 2]).sha256()


def test_inputs_in_memory_are_pickled_with_their_values() -> None:
    arrived = pickle.loads(pickle.dumps(Inputs(TEN, [1])))
    assert not arrived.is_mapped
    assert np.array_equal(arrived[:], TEN[[1]])


def test_reading_mapped_inputs_returns_a_plain_array(mapped: Inputs) -> None:
    assert type(mapped[:3]) is np.ndarray
    assert type(mapped.take([1])) is np.ndarray


def test_selections_with_a_stored_fingerprint_have_different_fingerprints(mapped: Inputs) -> None:
    prints = {
        images.sha256() for images in (mapped, mapped.select([0]), mapped.select([1]), Inputs(TEN))
    }
    assert len(prints) == 4


def test_the_package_exports_every_name_that_it_lists() -> None:
    names = fedraw.data.__all__
    assert sorted(name for part in fedraw.data._DEFINED_IN.values() for name in part) == sorted(
        names
    )
    assert all(getattr(fedraw.data, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        fedraw.data.lode  # noqa: B018
