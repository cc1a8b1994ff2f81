"""Sums of features: exact in any order, exact to subtract, and refused if no samples have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.layout import Layout
from fedraw.core.sums import (
    BLOCK,
    GRID,
    MOST_FEATURES,
    MOST_SAMPLES,
    Sums,
    SumsShape,
    digest,
    on_grid,
)
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput, RefusedUpdate

SHAPE = SumsShape(labels=3, features=4)


def samples(seed: int, count: int, scale: float = 1.0) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    return scale * rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def messages(count: int) -> list[Floats]:
    """Messages of clients whose features differ by many orders of magnitude."""
    return [SHAPE.of_samples(*samples(i, 5 + 7 * i, 10.0 ** (i % 5 - 3))) for i in range(count)]


def added(parts: list[Floats]) -> Floats:
    total = SHAPE.zeros()
    for part in parts:
        total += part
    return total


@given(st.permutations(range(8)))
def test_totals_have_the_same_bytes_in_any_order(order: list[int]) -> None:
    parts = messages(8)
    assert digest(added([parts[i] for i in order])) == digest(added(parts))


@given(st.permutations(range(8)), st.sets(st.integers(0, 7), max_size=7))
def test_a_part_that_is_subtracted_leaves_no_trace(order: list[int], gone: set[int]) -> None:
    parts = messages(8)
    total = added(parts)
    for i in order:
        if i in gone:
            total -= parts[i]
    total += 0.0
    kept = [part for i, part in enumerate(parts) if i not in gone]
    assert digest(total) == digest(added(kept))


def test_it_does_not_matter_who_has_which_samples() -> None:
    features, labels = samples(0, 3 * BLOCK + 5)
    whole = SHAPE.of_samples(features, labels)
    shuffled = np.random.default_rng(1).permutation(len(labels))
    parts = [SHAPE.of_samples(features[own], labels[own]) for own in np.array_split(shuffled, 6)]
    assert digest(added(parts)) == digest(whole)


def test_totals_are_exact_to_the_largest_number_of_samples() -> None:
    """All samples at the limit but one, which is one cell of the grid away from zero."""
    message = SHAPE.of_samples(np.full((1, 4), 16.0), np.zeros(1, np.int64))
    small = SHAPE.of_samples(np.full((1, 4), GRID), np.zeros(1, np.int64))
    total = message * (MOST_SAMPLES - 1)
    assert SHAPE.triangle(total + small)[0] - SHAPE.triangle(total)[0] == GRID**2


def test_the_parts_of_a_message() -> None:
    features = np.array([[1.0, 2.0, 0.0, 0.5], [3.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 2.0]])
    message = SHAPE.of_samples(features, np.array([2, 0, 2]))
    assert SHAPE.counts(message).tolist() == [1, 0, 2]
    assert SHAPE.sums(message).tolist() == [[3, 0, 1, 0], [0, 0, 0, 0], [0, 2, 0, 2.5]]
    assert np.array_equal(SHAPE.products(message), features.T @ features)
    assert SHAPE.squares(message).tolist() == [11, 4, 1, 4.25]


@pytest.mark.parametrize(
    ("floor", "counts"), [(1, [1, 2, 3]), (2, [0, 2, 3]), (3, [0, 0, 3]), (4, [0, 0, 0])]
)
def test_labels_below_the_floor_are_left_out(floor: int, counts: list[int]) -> None:
    features, labels = samples(3, 6)[0], np.array([0, 1, 1, 2, 2, 2])
    message = SHAPE.of_samples(features, labels, floor)
    kept = np.array(counts)[labels] > 0
    assert SHAPE.counts(message).tolist() == counts
    assert digest(message) == digest(SHAPE.of_samples(features[kept], labels[kept]))


def test_features_are_rounded_to_the_grid_and_clipped() -> None:
    found = on_grid(np.array([1e-9, -1e-9, 0.3, 15.9999, 1e9, -1e9], np.float32))
    assert found.tolist() == [0, 0, 307 * GRID, 16, 16, -16]
    assert not np.signbit(found[:2]).any()


GOOD = SHAPE.of_samples(*samples(5, 40))


def changed(place: Any, value: float, of: Floats = GOOD) -> Floats:
    message = of.copy()
    message[place] = value
    return message


REFUSED = [
    (changed(0, GOOD[0] + 0.5), "counts that are not whole numbers"),
    (changed(0, -1.0), "counts that are not whole numbers from 0 on"),
    (changed(0, 500.0), "counts of .* samples, and says that it has 40"),
    (changed(3, GRID / 2), "sums that are not on the grid"),
    (changed(-1, GRID**2 / 2), "sums that are not on the grid"),
    (changed(3, 16.0 * 40 + 1), "sums above 16 a sample"),
    (changed(slice(15, None), 256.0 * 41), "squares outside 0 to 256 a sample"),
    (changed(15, -1.0), "squares outside 0 to 256 a sample"),
    (changed(16, 9999.0), "a product that is larger than every square"),
    (changed(3, 10.0 * GOOD[0]), "squares that are smaller than those of its means"),
    (changed(slice(3, None), 1.0, SHAPE.zeros()), "sums above 16 a sample"),
]


@pytest.mark.parametrize(("message", "words"), REFUSED)
def test_sums_that_no_samples_have_are_refused(message: Floats, words: str) -> None:
    with pytest.raises(RefusedUpdate, match=f"client 'a' sent {words}"):
        SHAPE.check("a", message, 40)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [1e-4, 0.3, 1.0, 40.0])
def test_sums_of_samples_are_accepted(seed: int, scale: float) -> None:
    count = 1 + 9 * seed
    SHAPE.check("a", SHAPE.of_samples(*samples(seed, count, scale)), count)
    constant = np.full((count, 4), scale)
    SHAPE.check("a", SHAPE.of_samples(constant, samples(seed, count)[1]), count)


def test_a_client_may_have_nothing_above_the_floor() -> None:
    SHAPE.check("a", SHAPE.zeros(), 3)


def test_a_large_site_may_send_large_sums() -> None:
    SHAPE.check("a", GOOD * 100_000, 4_000_000)
    with pytest.raises(RefusedUpdate, match="counts of 40,000,000 samples, more than 33,554,432"):
        SHAPE.check("a", GOOD * 1_000_000, 40_000_000)


@pytest.mark.parametrize(
    "layout",
    [
        None,
        Layout.of([("bias", (3,))]),
        Layout.of([("hidden", (4, 5)), ("head", (3, 4)), ("bias", (3,))]),
        Layout.of([("head", (3, 4))]),
    ],
)
def test_only_one_linear_layer_is_solved(layout: Layout | None) -> None:
    with pytest.raises(BadInput, match="one linear layer with weights and biases"):
        Sums().shape_for(layout)


def test_the_shape_follows_from_the_linear_layer() -> None:
    layout = Layout.of([("1.weight", (3, 4)), ("1.bias", (3,))])
    assert Sums().shape_for(layout) == SHAPE
    with pytest.raises(BadInput, match="8,193 features: sums are kept for at most 8,192"):
        SumsShape(2, MOST_FEATURES + 1)
