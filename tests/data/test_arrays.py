from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data.arrays import from_arrays, load_npz
from fedraw.data.dataset import Dataset, Inputs
from fedraw.errors import BadInput
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec

GOOD: dict[str, Any] = {"inputs": np.zeros((4, 2, 2), dtype=np.uint8), "labels": [0, 0, 1, 1]}


def load(path: Path) -> Any:
    return load_npz(path, np.random.default_rng(0))


def saved(folder: Path, **changes: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{k: v for k, v in (GOOD | changes).items() if v is not None})
    return path


def test_a_file_needs_only_images_and_labels(tmp_path: Path) -> None:
    data = load(saved(tmp_path))
    assert (data.name, data.classes, len(data.inputs), len(data.test_inputs)) == ("own", 2, 2, 2)


def test_labels_may_be_bytes(tmp_path: Path) -> None:
    data = load(saved(tmp_path, labels=np.array([0, 0, 2, 2], np.uint8)))
    assert (data.labels.tolist(), data.classes) == ([0, 2], 3)


def test_a_file_may_have_a_test_set_and_label_names(tmp_path: Path) -> None:
    data = load(
        saved(
            tmp_path,
            labels=["nv", "nv", "df", "df"],
            test_inputs=GOOD["inputs"][:1],
            test_labels=["df"],
            label_names=["nv", "df"],
        )
    )
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 0, 1, 1], [1])


def test_without_names_the_holdout_is_repeatable(tmp_path: Path) -> None:
    path = saved(tmp_path, inputs=np.arange(4.0)[:, None])
    assert np.array_equal(load(path).test_inputs, load(path).test_inputs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None}, "'labels' is missing.*found inputs"),
        ({"test_image": [1]}, "'test_image'; did you mean 'test_images'"),
        ({"labels": np.array([0, None], dtype=object)}, "'labels' cannot be read.*not objects"),
        ({"labels": [0, 1]}, r"labels \(2,\)"),
        ({"inputs": np.float32(7)}, r"inputs have shape \(\)"),
        ({"inputs": np.full((4, 1), np.nan)}, r"inputs\[0\].*finite"),
        ({"labels": [0, 0, 1, -3]}, r"labels\[3\] = -3"),
        ({"test_labels": [0]}, "give both"),
        ({"label_names": ["only one"]}, r"labels\[2\] = 1"),
    ],
)
def test_the_error_names_the_wrong_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = saved(tmp_path, **changes)
    with pytest.raises(BadInput, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_labels_that_do_not_start_at_0_are_refused_with_their_numbers(tmp_path: Path) -> None:
    spec = Spec.from_dict(
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
    path = saved(tmp_path, inputs=np.arange(4000.0).reshape(4, -1))
    content = bytearray(path.read_bytes())
    content[2000:2100] = b"x" * 100
    path.write_bytes(content)
    with pytest.raises(BadInput, match="'inputs' cannot be read"):
        load(path)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_bytes_stay_bytes_whole_numbers_stay_whole_and_others_become_float32() -> None:
    def inputs(dtype: type[np.generic]) -> Inputs:
        return from_arrays(np.full((4, 1), 51, dtype=dtype), [0, 0, 0, 0], rng=rng()).inputs

    stored = (np.uint8, np.int64, np.int16, np.float64, np.float16)
    assert [inputs(t).dtype for t in stored] == ["u1", "i8", "i8", "f4", "f4"]
    assert inputs(np.int16)[:1].tolist() == [[51]]


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
        test_inputs=np.zeros((len(test), 1)),
        test_labels=test_labels,
    )
    numbers, test_numbers = list(map(int, labels)), list(map(int, test_labels))
    assert (data.labels.tolist(), data.test_labels.tolist()) == (numbers, test_numbers)
    assert data.labels.dtype == data.test_labels.dtype == np.int64
    assert data.label_names == tuple(map(str, range(max(numbers + test_numbers) + 1)))


@pytest.mark.parametrize("dtype", [np.bool, np.uint8, np.int8, np.uint64])
def test_a_run_takes_labels_of_any_integer_type(dtype: type[np.generic]) -> None:
    labels = (np.arange(40) % 2).astype(dtype)
    spec = Spec.from_dict(
        {
            "partition": {"kind": "iid", "clients": 2},
            "speeds": {"kind": "uniform"},
            "strategy": {"name": "fedfa", "buffer": 2},
            "training": {"model": "linear"},
            "run": {"events": 4, "seeds": [1]},
        }
    )
    (result,) = simulate(spec, data=(np.zeros((40, 3), dtype), labels))
    assert result.summary["events"] == 4


def test_label_names_number_text_labels() -> None:
    data = from_arrays(
        np.eye(3),
        np.array(["b", "a", "b"], dtype=object),
        test_inputs=np.eye(3)[:1],
        test_labels=["a"],
        label_names=["b", "a", "never seen"],
    )
    assert (data.labels.tolist(), data.test_labels.tolist(), data.classes) == ([0, 1, 0], [1], 3)


def test_a_label_that_only_the_test_set_has_gets_a_name() -> None:
    data = from_arrays(np.eye(2), ["a", "c"], test_inputs=np.eye(2)[:1], test_labels=["b"])
    assert (data.label_names, data.labels.tolist()) == (("a", "b", "c"), [0, 2])


def test_the_holdout_takes_the_same_share_of_each_label() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    data = from_arrays(np.arange(62.0)[:, None], labels, rng=rng())
    assert np.bincount(data.test_labels).tolist() == [10, 2, 1]
    together = np.concatenate([data.inputs, data.test_inputs])
    assert sorted(together.ravel().tolist()) == list(range(62))


def test_a_single_sample_stays_in_training() -> None:
    data = from_arrays(np.eye(5), [0, 0, 0, 0, 1], holdout=0.9, rng=rng())
    assert 1 in data.labels
    assert 1 not in data.test_labels


def test_the_holdout_depends_on_the_generator_only() -> None:
    first, again = (from_arrays(np.eye(20), [0, 1] * 10, rng=rng()) for _ in range(2))
    assert np.array_equal(first.test_inputs, again.test_inputs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_arrays(np.eye(2), [0, 1]), "rng = a generator"),
        (
            lambda: from_arrays(np.eye(2), [0, 1], rng=rng(), holdout=1.0),
            r"holdout = 1.0.*\[0, 1\)",
        ),
        (lambda: from_arrays(np.eye(2), [0, 1], test_inputs=np.eye(2)), "give both, or neither"),
        (lambda: from_arrays(np.eye(2), [0.0, 1.5, 2.0], rng=rng()), "one target for each sample"),
        (lambda: from_arrays(np.eye(2), [0.0, np.nan], rng=rng()), r"targets\[1\].*not a finite"),
        (lambda: from_arrays(np.eye(2), [1, 2], groups=[0.5, 1.5], rng=rng()), "groups have type"),
        (lambda: from_arrays(np.eye(2), ["a", "b"], groups=[0, 1], rng=rng()), "give numbers to"),
        (lambda: from_arrays(np.eye(2), [0, -1], rng=rng()), r"labels\[1\] = -1"),
        (lambda: from_arrays(np.eye(2), [0, 1, 1], rng=rng()), r"labels \(3,\)"),
        (lambda: from_arrays([["x"]], [0], rng=rng()), "numbers"),
        (lambda: from_arrays(7, [0], rng=rng()), r"inputs have shape \(\).*give \(n, \.\.\.\)"),
        (lambda: from_arrays(np.eye(2), 1, rng=rng()), r"labels \(\)"),
        (
            lambda: from_arrays([[1, 2], [3]], [0, 1], rng=rng()),
            "inputs do not all have the",
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
        (
            lambda: from_arrays(np.eye(2), [0, 10**15], label_names=["a", "b"], rng=rng()),
            r"labels\[1\] = 1000000000000000 is outside 0 to 1",
        ),
        (lambda: from_arrays([[1e300], [0.0]], [0, 0], rng=rng()), r"inputs\[0\]"),
        (
            lambda: from_arrays(np.ma.masked_equal(np.eye(2), 1.0), [0, 1], rng=rng()),
            "inputs have masked values; fill them, or leave these samples out",
        ),
        (
            lambda: from_arrays(np.eye(2), np.ma.masked_equal([0, 1], 1), rng=rng()),
            "labels have masked values",
        ),
        (lambda: from_arrays(np.eye(2), [0, 10**9], rng=rng()), "number the labels from 0"),
        (
            lambda: from_arrays(np.eye(2), ["cat", "dgo"], label_names=["cat", "dog"], rng=rng()),
            "'dgo'.*did you mean 'dog'",
        ),
        (
            lambda: from_arrays(np.eye(2), ["a", "b"], test_inputs=np.eye(2), test_labels=[0, 1]),
            "the test set has numbers as labels and the training set has names",
        ),
        (
            lambda: from_arrays(
                np.eye(2),
                [0, 1],
                test_inputs=np.ones((1, 2), dtype=np.uint8),
                test_labels=[0],
            ),
            "give all the same shape and type",
        ),
    ],
)
def test_bad_arrays_are_refused_with_a_remedy(call: Callable[[], Dataset], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


def test_a_masked_array_without_masked_values_is_an_array_like_any_other() -> None:
    plain, labels = np.arange(8.0).reshape(4, 2), [0, 0, 1, 1]
    masked = np.ma.masked_less(plain, -1.0)
    one, other = (from_arrays(inputs, labels, rng=rng()) for inputs in (plain, masked))
    assert np.array_equal(one.inputs[:], other.inputs[:])
    assert np.array_equal(one.test_inputs[:], other.test_inputs[:])
