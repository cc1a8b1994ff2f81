from __future__ import annotations

from io import BytesIO
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from torch import nn

from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flower.tensors import TensorTemplate, record_of

FLOATS = st.sampled_from(["float16", "float32", "float64"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([8, 9], np.float32)}


def npy(array: Any, **options: Any) -> Array:
    file = BytesIO()
    np.save(file, array, **options)
    return Array(str(array.dtype), array.shape, "numpy.ndarray", file.getvalue())


@given(arrays.arrays(FLOATS, SHAPES, elements=st.integers(-9, 9)))
def test_written_tensors_have_flowers_bytes(array: Any) -> None:
    record = record_of({"w": array})
    assert record["w"] == Array(array)


@given(st.lists(arrays.arrays(FLOATS, SHAPES, elements=st.integers(-9, 9)), min_size=1, max_size=4))
def test_a_model_survives_a_round_trip(tensors: list[Any]) -> None:
    record = record_of({f"t{i}": tensor for i, tensor in enumerate(tensors)})
    template = TensorTemplate.of(record)
    vector = template.read(record)
    assert vector.dtype == np.float32
    assert vector.tolist() == [x for tensor in tensors for x in tensor.ravel().tolist()]
    assert template.write(vector) == record


def test_parameters_come_first_and_statistics_last() -> None:
    record = record_of(
        {
            "bn.running_mean": np.array([1], np.float32),
            "w": np.array([2], np.float32),
            "bn.running_var": np.array([3], np.float32),
            "b": np.array([4], np.float32),
        }
    )
    template = TensorTemplate.of(record)
    assert template.read(record).tolist() == [2, 4, 1, 3]
    assert template.layout.parameter_count == 2
    names = [segment.name for segment in template.layout.segments]
    assert names == ["w", "b", "bn.running_mean", "bn.running_var"]
    assert list(template.write(template.read(record))) == list(record)
    assert TensorTemplate.of(record, statistics=["w"]).read(record).tolist() == [1, 3, 4, 2]
    assert TensorTemplate.of(record, statistics=[]).layout.statistics_count == 0


def test_a_state_dict_of_torch_is_loaded_strictly() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).train()
    module(torch.ones(4, 2))
    template = TensorTemplate.of(record_of(module.state_dict()))
    doubled = template.write(2 * template.read(record_of(module.state_dict())))
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    other.load_state_dict(doubled.to_torch_state_dict(), strict=True)
    before, after = module.state_dict(), other.state_dict()
    for name in ("0.weight", "0.bias", "1.weight", "1.running_mean", "1.running_var"):
        assert torch.equal(after[name], 2 * before[name])
    assert after["1.num_batches_tracked"] == 1


def test_integer_tensors_in_a_reply_are_ignored() -> None:
    template = TensorTemplate.of(record_of({**MODEL, "n": np.array(5)}))
    for reply in (MODEL, {**MODEL, "n": np.array(77)}):
        vector = template.read(record_of(reply))
        assert template.write(vector)["n"].numpy() == 5


@pytest.mark.parametrize(
    "same",
    [
        npy(np.asfortranarray(MODEL["w"])),
        npy(MODEL["w"].astype(">f4")),
        npy(np.asfortranarray(MODEL["w"].astype(">f4"))),
    ],
    ids=["fortran", "big-endian", "both"],
)
def test_other_encodings_of_a_tensor_are_read(same: Array) -> None:
    template = TensorTemplate.of(record_of(MODEL))
    record = ArrayRecord({"w": same, "b": Array(MODEL["b"])})
    assert template.read(record).tolist() == [0, 1, 2, 3, 4, 5, 8, 9]
    assert TensorTemplate.of(record).read(record_of(MODEL)).tolist() == [0, 1, 2, 3, 4, 5, 8, 9]


def test_version_2_of_the_format_is_read() -> None:
    file = BytesIO()
    np.lib.format.write_array(file, MODEL["b"], version=(2, 0))
    record = ArrayRecord({"b": Array("float32", (2,), "numpy.ndarray", file.getvalue())})
    assert TensorTemplate.of(record_of({"b": MODEL["b"]})).read(record).tolist() == [8, 9]


def wrong(name: str, tensor: Any) -> ArrayRecord:
    record = record_of(MODEL)
    record[name] = tensor if isinstance(tensor, Array) else Array(np.asarray(tensor))
    return record


GOOD = Array(MODEL["w"])
W = "tensor 'w' "


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (record_of({"w": MODEL["w"]}), "tensor 'b' is missing"),
        (wrong("c", [1.0]), "tensor 'c' is not part of the model"),
        (
            wrong("w", np.zeros((3, 2), np.float32)),
            W + "is float32 of shape (3, 2), but the model's is float32 of shape (2, 3)",
        ),
        (
            wrong("w", np.zeros((2, 3))),
            W + "is float64 of shape (2, 3), but the model's is float32 of shape (2, 3)",
        ),
        (
            wrong("w", np.zeros((2, 3), np.int32)),
            W + "is int32 of shape (2, 3), but the model's is float32 of shape (2, 3)",
        ),
        (
            wrong("w", npy(np.full((2, 3), None), allow_pickle=True)),
            W + "has Python objects instead of numbers",
        ),
        (
            wrong("w", Array("float32", (2, 3), "pickle", GOOD.data)),
            W + "has the format 'pickle', not 'numpy.ndarray'",
        ),
        (
            wrong("w", Array("float32", (2, 3), "numpy.ndarray", GOOD.data[:-4])),
            W + "has 20 bytes of data instead of 24",
        ),
        (
            wrong("w", Array("float32", (2, 3), "numpy.ndarray", GOOD.data + b"more")),
            W + "has 28 bytes of data instead of 24",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(sent: ArrayRecord, words: str) -> None:
    with pytest.raises(RefusedUpdate) as refusal:
        TensorTemplate.of(record_of(MODEL)).read(sent)
    assert str(refusal.value) == words


@given(st.binary(max_size=200), st.integers(0, 130))
def test_arbitrary_bytes_are_refused_or_read(junk: bytes, kept: int) -> None:
    data = GOOD.data[:kept] + junk
    record = wrong("w", Array("float32", (2, 3), "numpy.ndarray", data))
    try:
        assert TensorTemplate.of(record_of(MODEL)).read(record).shape == (8,)
    except RefusedUpdate as refusal:
        assert "'w'" in str(refusal)


def test_a_double_beyond_float32_becomes_infinite() -> None:
    record = record_of({"w": np.array([1e300, 1.0])})
    assert TensorTemplate.of(record).read(record).tolist() == [np.inf, 1.0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"n": np.array([1])}, "the model has no float tensor, so there is nothing to train"),
        ({}, "the model has no float tensor, so there is nothing to train"),
        (
            [1],
            "a model is a state_dict, a mapping from names to arrays or an ArrayRecord, not list",
        ),
        (
            {"w": np.array([1j])},
            "tensor 'w' is complex128; convert it to float16, float32, float64 or integers",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Any, words: str) -> None:
    with pytest.raises(BadInput) as error:
        TensorTemplate.of(record_of(model))
    assert str(error.value) == words


def test_bfloat16_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match=r"tensor 'w': .*convert it with \.float\(\)"):
        record_of({"w": torch.ones(2, dtype=torch.bfloat16)})


def test_statistics_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(BadInput, match="statistics has 'mean'"):
        TensorTemplate.of(record_of(MODEL), statistics=["mean"])
