from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset, Images
from fedraw.errors import BadInput
from fedraw.experiment.runner import run
from fedraw.experiment.spec import Spec


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def toy(**changes: Any) -> Dataset:
    images = np.zeros((3, 1, 2, 2), dtype=np.float32)
    whole = {
        "name": "toy",
        "images": images,
        "labels": np.array([0, 1, 1]),
        "test_images": images[:1],
        "test_labels": np.array([1]),
        "label_names": ("cat", "dog"),
    }
    parts: dict[str, Any] = whole | changes
    parts |= {key: Images(parts[key]) for key in ("images", "test_images")}
    return Dataset(**parts)


def with_nan() -> np.ndarray[Any, np.dtype[np.float32]]:
    images = np.zeros((3, 1, 2, 2), dtype=np.float32)
    images[2, 0, 1, 1] = np.nan
    return images


def test_a_dataset_knows_its_classes_and_shape() -> None:
    assert (toy().classes, toy().input_shape) == (2, (1, 2, 2))


def test_a_dataset_may_lack_a_test_set() -> None:
    empty = np.zeros((0, 1, 2, 2), dtype=np.float32)
    assert len(toy(test_images=empty, test_labels=np.array([], dtype=np.int64)).test_labels) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.array([0, 1])}, r"labels \(2,\).*one label for each"),
        ({"labels": np.array([0, 1, 2])}, r"labels\[2\] = 2.*0 to 1"),
        ({"test_labels": np.array([-1])}, r"test_labels\[0\] = -1"),
        ({"images": with_nan()}, r"^images\[2\].*not a finite"),
        ({"images": np.zeros((0, 1, 2, 2), dtype=np.float32)}, "no images"),
        ({"images": np.zeros((3, 1, 2, 2))}, "float64.*from_arrays"),
        ({"images": np.zeros(3, dtype=np.float32)}, r"shape \(3,\)"),
        ({"images": np.zeros((), dtype=np.float32)}, r"images have shape \(\)"),
        ({"test_images": np.zeros((1, 4), dtype=np.float32)}, "give both the same shape"),
        ({"label_names": ("cat", "cat")}, "'cat' twice"),
    ],
)
def test_a_bad_dataset_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
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


def test_bytes_stay_bytes_and_other_numbers_become_float32() -> None:
    def images(dtype: type[np.generic]) -> Images:
        return from_arrays(np.full((4, 1), 51, dtype=dtype), [0, 0, 0, 0], rng=rng()).images

    assert [images(t).dtype for t in (np.uint8, np.int64, np.float64)] == ["u1", "f4", "f4"]
    assert images(np.int64)[:1].tolist() == [[51.0]]


def test_the_fingerprint_tells_content_apart_and_not_how_it_is_stored() -> None:
    images = np.arange(12, dtype=np.float32).reshape(3, 1, 2, 2)
    everything = Images(np.concatenate([images[::-1], images]))
    same = Dataset(
        "toy",
        everything.select([3, 4, 5]),
        np.array([0, 1, 1]),
        everything.select([3]),
        np.array([1]),
        ("cat", "dog"),
    )
    assert same.sha256() == toy(images=images, test_images=images[:1]).sha256()
    assert same.sha256() != toy(images=images[::-1], test_images=images[:1]).sha256()
    assert same.sha256() != toy(images=images, test_images=images[1:2]).sha256()


# bool, and signed and unsigned integers of every size.
WHOLE_NUMBERS = [np.dtype(code) for code in "?" + np.typecodes["AllInteger"]]


@given(
    st.lists(st.integers(0, 127), min_size=1, max_size=8),
    st.lists(st.integers(0, 127), max_size=4),
    st.sampled_from(WHOLE_NUMBERS),
    st.sampled_from(WHOLE_NUMBERS),
)
def test_labels_of_every_integer_type_mean_the_same(
    train: list[int], test: list[int], dtype: np.dtype[Any], test_dtype: np.dtype[Any]
) -> None:
    labels, test_labels = np.array(train).astype(dtype), np.array(test).astype(test_dtype)
    data = from_arrays(
        np.zeros((len(train), 1)),
        labels,
        test_images=np.zeros((len(test), 1)),
        test_labels=test_labels,
    )
    numbers, test_numbers = list(map(int, labels)), list(map(int, test_labels))
    assert (data.labels.tolist(), data.test_labels.tolist()) == (numbers, test_numbers)
    assert data.labels.dtype == data.test_labels.dtype == np.int64
    assert data.label_names == tuple(map(str, range(max(numbers + test_numbers) + 1)))


@pytest.mark.parametrize("dtype", [np.bool, np.uint8, np.int8, np.uint64])
def test_a_run_takes_labels_of_any_integer_type(dtype: type[np.generic]) -> None:
    labels = (np.arange(40) % 2).astype(dtype)
    spec = Spec.read(
        {
            "partition": {"kind": "iid", "clients": 2},
            "speeds": {"kind": "uniform"},
            "strategy": {"name": "fedfa", "buffer": 2},
            "training": {"model": "linear"},
            "run": {"events": 4, "seeds": [1]},
        }
    )
    (result,) = run(spec, data=(np.zeros((40, 3), dtype), labels))
    assert result.summary["events"] == 4


def test_label_names_number_text_labels() -> None:
    data = from_arrays(
        np.eye(3),
        np.array(["b", "a", "b"], dtype=object),
        test_images=np.eye(3)[:1],
        test_labels=["a"],
        label_names=["b", "a", "never seen"],
    )
    assert (data.labels.tolist(), data.test_labels.tolist(), data.classes) == ([0, 1, 0], [1], 3)


def test_a_label_that_only_the_test_set_has_gets_a_name() -> None:
    data = from_arrays(np.eye(2), ["a", "c"], test_images=np.eye(2)[:1], test_labels=["b"])
    assert (data.label_names, data.labels.tolist()) == (("a", "b", "c"), [0, 2])


def test_the_holdout_takes_the_same_share_of_each_label() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    data = from_arrays(np.arange(62.0)[:, None], labels, rng=rng())
    assert np.bincount(data.test_labels).tolist() == [10, 2, 1]
    together = np.concatenate([data.images, data.test_images])
    assert sorted(together.ravel().tolist()) == list(range(62))


def test_a_single_sample_stays_in_training() -> None:
    data = from_arrays(np.eye(5), [0, 0, 0, 0, 1], holdout=0.9, rng=rng())
    assert 1 in data.labels
    assert 1 not in data.test_labels


def test_the_holdout_depends_on_the_generator_only() -> None:
    first, again = (from_arrays(np.eye(20), [0, 1] * 10, rng=rng()) for _ in range(2))
    assert np.array_equal(first.test_images, again.test_images)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_arrays(np.eye(2), [0, 1]), "rng = a generator"),
        (
            lambda: from_arrays(np.eye(2), [0, 1], rng=rng(), holdout=1.0),
            r"holdout = 1.0.*\[0, 1\)",
        ),
        (lambda: from_arrays(np.eye(2), [0, 1], test_images=np.eye(2)), "give both, or neither"),
        (lambda: from_arrays(np.eye(2), [0.0, 1.5], rng=rng()), "float64.*whole numbers"),
        (lambda: from_arrays(np.eye(2), [0, -1], rng=rng()), r"labels\[1\] = -1"),
        (lambda: from_arrays(np.eye(2), [0, 1, 1], rng=rng()), r"labels \(3,\)"),
        (lambda: from_arrays([["x"]], [0], rng=rng()), "numbers"),
        (lambda: from_arrays(7, [0], rng=rng()), r"images have shape \(\).*give \(n, \.\.\.\)"),
        (lambda: from_arrays(np.eye(2), 1, rng=rng()), r"labels \(\)"),
        (
            lambda: from_arrays([[1, 2], [3]], [0, 1], rng=rng()),
            "images do not all have the",
        ),
        (lambda: from_arrays(np.eye(2), [[0], [1, 1]], rng=rng()), "labels do not all have"),
        (
            lambda: from_arrays(np.eye(2), np.array([0, 2**64 - 1], np.uint64), rng=rng()),
            "label 18446744073709551615 is too large",
        ),
        (
            lambda: from_arrays(
                np.eye(2), np.array([0, 2**63], np.uint64), label_names=["a", "b"], rng=rng()
            ),
            "label 9223372036854775808 is too large",
        ),
        (lambda: from_arrays([[1e300], [0.0]], [0, 0], rng=rng()), r"images\[0\]"),
        (lambda: from_arrays(np.eye(2), [0, 10**9], rng=rng()), "number the labels from 0"),
        (
            lambda: from_arrays(np.eye(2), ["cat", "dgo"], label_names=["cat", "dog"], rng=rng()),
            "'dgo'.*did you mean 'dog'",
        ),
        (
            lambda: from_arrays(np.eye(2), ["a", "b"], test_images=np.eye(2), test_labels=[0, 1]),
            "names in one array",
        ),
        (
            lambda: from_arrays(
                np.eye(2),
                [0, 1],
                test_images=np.ones((1, 2), dtype=np.uint8),
                test_labels=[0],
            ),
            "give both the same type",
        ),
    ],
)
def test_bad_arrays_are_refused_with_a_remedy(call: Callable[[], Dataset], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
