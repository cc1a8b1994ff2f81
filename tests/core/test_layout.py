from __future__ import annotations

import numpy as np
import pytest

from fedraw.core.layout import Layout
from fedraw.core.update import difference
from fedraw.errors import BadInput

NETWORK = [("conv", (4, 1, 3, 3)), ("fc.weight", (5, 4)), ("fc.bias", (5,)), ("scale", (2,))]


def test_tensors_lie_end_to_end() -> None:
    layout = Layout.of(NETWORK)
    assert [segment.slice for segment in layout.segments] == [
        *(slice(0, 36), slice(36, 56), slice(56, 61), slice(61, 63))
    ]
    assert layout.size == 63


def test_statistics_are_the_last_slice() -> None:
    layout = Layout.of(NETWORK, [("mean", (4,)), ("var", (4,))])
    assert (layout.parameters, layout.statistics) == (slice(0, 63), slice(63, 71))


def test_a_model_without_statistics_has_an_empty_slice_of_them() -> None:
    assert Layout.of(NETWORK).statistics == slice(63, 63)


def test_a_scalar_takes_one_place() -> None:
    layout = Layout.of([("temperature", ()), ("bias", (2,))])
    assert [segment.slice for segment in layout.segments] == [slice(0, 1), slice(1, 3)]


def test_the_head_is_the_last_matrix_and_its_bias() -> None:
    layout = Layout.of([("hidden", (4, 4)), ("hidden.bias", (4,)), *NETWORK[1:]], [("m", (5, 4))])
    assert layout.head_weight is not None
    assert layout.head_bias is not None
    assert (layout.head_weight.name, layout.head_bias.name) == ("fc.weight", "fc.bias")


def test_a_head_may_lack_a_bias_and_a_model_a_head() -> None:
    without_bias = Layout.of([("bias", (3,)), ("fc", (3, 2)), ("scale", (2,))])
    assert without_bias.head_weight is not None
    assert without_bias.head_bias is None
    assert Layout.of([("only", (3,))]).head_weight is None


def test_a_name_stands_once() -> None:
    with pytest.raises(BadInput, match="tensor 'a' appears twice in the layout"):
        Layout.of([("a", (1,)), ("b", (1,))], [("a", (1,))])


def test_a_difference_has_parameters_as_change_and_statistics_as_they_are() -> None:
    start, trained = np.array([1, 2, 3], np.float32), np.array([4, 4, 4], np.float32)
    layout = Layout.of([("w", (2,))], [("mean", (1,))])
    assert difference(trained, start).tolist() == [3, 2, 1]
    assert difference(trained, start, layout).tolist() == [3, 2, 4]
    assert (start.tolist(), trained.tolist()) == ([1, 2, 3], [4, 4, 4])
