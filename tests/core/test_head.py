"""The output layer in one number a label, and which versions are remembered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.head import VERSIONS, Levels, levels, outputs
from fedraw.core.layout import Layout
from fedraw.errors import BadInput

WITH_BIAS = Layout.of([("body", (2, 2)), ("fc.weight", (3, 2)), ("fc.bias", (3,))])
WITHOUT = Layout.of([("fc.weight", (3, 2))], [("mean", (1,))])
NUMBERS = st.lists(st.floats(-4, 4, width=16), min_size=13, max_size=13)


@given(NUMBERS, NUMBERS)
def test_levels_of_a_difference_are_the_difference_of_levels(
    one: list[float], other: list[float]
) -> None:
    for layout in (WITH_BIAS, WITHOUT):
        a, b = (np.array(own[: layout.size], np.float32) for own in (one, other))
        assert levels(a - b, layout) == pytest.approx(levels(a, layout) - levels(b, layout))


def test_a_layer_without_bias_is_summed_row_by_row_and_statistics_stay_out() -> None:
    vector = np.array([1, 2, 3, 4, 5, 6, 99], np.float32)
    assert levels(vector, WITHOUT).tolist() == [3, 7, 11]


def test_a_version_is_known_until_the_ring_has_gone_round() -> None:
    ring = Levels.empty(2)
    for version in range(VERSIONS + 1):
        ring.keep(version, np.array([version, -version], float))
    assert ring.of(0) is None
    assert ring.of(VERSIONS + 1) is None
    known = ring.of(VERSIONS)
    assert known is not None and known.tolist() == [VERSIONS, -VERSIONS]


@pytest.mark.parametrize("layout", [None, Layout.of([("w", (3,))])])
def test_a_model_without_an_output_layer_is_refused(layout: Layout | None) -> None:
    with pytest.raises(BadInput, match="labels = 'inferred' reads the model's output layer"):
        outputs(layout, "labels = 'inferred'")


def test_levels_of_a_model_without_an_output_layer_are_refused() -> None:
    with pytest.raises(BadInput, match="the layout has no output layer"):
        levels(np.zeros(3, np.float32), Layout.of([("w", (3,))]))
