"""The output layer in one number a label, and which versions are remembered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.layout import Layout
from fedraw.errors import BadInput
from fedraw.strategies.scoring.output_layer import VERSIONS, LevelHistory, OutputLayer

WITH_BIAS = Layout.of([("body", (2, 2)), ("fc.weight", (3, 2)), ("fc.bias", (3,))])
WITHOUT = Layout.of([("fc.weight", (3, 2))], [("mean", (1,))])
NUMBERS = st.lists(st.floats(-4, 4, width=16), min_size=13, max_size=13)


@given(NUMBERS, NUMBERS)
def test_levels_of_a_difference_are_the_difference_of_levels(
    one: list[float], other: list[float]
) -> None:
    for layout in (WITH_BIAS, WITHOUT):
        a, b = (np.array(own[: layout.size], np.float32) for own in (one, other))
        levels = OutputLayer.of(layout).levels
        assert levels(a - b) == pytest.approx(levels(a) - levels(b), abs=1e-5)


def test_a_layer_without_bias_is_summed_row_by_row_and_statistics_stay_out() -> None:
    vector = np.array([1, 2, 3, 4, 5, 6, 99], np.float32)
    assert OutputLayer.of(WITHOUT).levels(vector).tolist() == [3, 7, 11]


def test_a_version_is_known_until_the_ring_has_gone_round() -> None:
    ring = LevelHistory.empty(2)
    for version in range(VERSIONS + 1):
        ring.record(version, np.array([version, -version], float))
    assert ring.of(0) is None
    assert ring.of(VERSIONS + 1) is None
    known = ring.of(VERSIONS)
    assert known is not None and known.tolist() == [VERSIONS, -VERSIONS]


@pytest.mark.parametrize("layout", [None, Layout.of([("w", (3,))])])
def test_a_model_without_an_output_layer_is_refused(layout: Layout | None) -> None:
    with pytest.raises(BadInput, match="labels = 'inferred' reads the model's output layer"):
        OutputLayer.of(layout, "labels = 'inferred'")
