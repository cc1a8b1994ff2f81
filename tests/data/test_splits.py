from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data import catalog
from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset, downscale, limit_per_label
from fedraw.data.partition import grouped_holdout, random_holdout
from fedraw.errors import BadInput

SEEDS = st.integers(0, 2**32)


@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=60).map(np.array),
    share=st.floats(0, 0.95),
    seed=SEEDS,
)
def test_no_group_is_on_both_sides(
    groups: np.ndarray[tuple[int], np.dtype[np.int64]], share: float, seed: int
) -> None:
    kept, held = grouped_holdout(groups, share, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(len(groups)))
    assert not set(groups[kept]) & set(groups[held])
    assert len(kept) >= 1
    # Without the group that was drawn last the share would not have been reached.
    wanted, largest = round(share * len(groups)), np.bincount(groups).max()
    assert len(held) <= max(0, wanted - 1 + largest) if wanted else len(held) == 0
    assert len(held) >= wanted or len(set(groups[kept])) == 1


def test_groups_of_one_are_drawn_in_the_exact_share() -> None:
    kept, held = grouped_holdout(np.arange(100), 0.2, np.random.default_rng(0))
    assert (len(kept), len(held)) == (80, 20)


def test_a_single_group_is_kept() -> None:
    assert [len(p) for p in grouped_holdout(np.zeros(9, int), 0.5, np.random.default_rng(0))] == [
        9,
        0,
    ]


@given(n=st.integers(0, 50), share=st.floats(0, 0.99), seed=SEEDS)
def test_a_random_holdout_uses_every_sample(n: int, share: float, seed: int) -> None:
    kept, held = random_holdout(n, share, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(n))
    assert len(held) == round(share * n)


def test_the_draw_of_stored_results_does_not_change() -> None:
    kept, held = random_holdout(10, 0.2, np.random.default_rng(0))
    drawn = np.random.default_rng(0).permutation(10)
    assert (kept.tolist(), held.tolist()) == (sorted(drawn[2:]), sorted(drawn[:2]))
    untouched = np.random.default_rng(0)
    random_holdout(10, 0.0, untouched)
    assert untouched.random() == np.random.default_rng(0).random()


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def toy(labels: list[int], pixels: int = 4) -> Dataset:
    images = np.arange(len(labels) * pixels**2, dtype=np.float32).reshape(-1, 1, pixels, pixels)
    return from_arrays(
        images,
        labels,
        test_inputs=images,
        test_labels=labels,
        label_names=["a", "b", "c"],
    )


@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    most=st.integers(1, 20),
    test_most=st.integers(1, 20),
)
def test_every_label_is_limited_and_loses_no_more(
    labels: list[int], most: int, test_most: int
) -> None:
    whole = toy(labels)
    part = limit_per_label(whole, most, test_most, rng())
    counts = np.bincount(whole.labels, minlength=3)
    np.testing.assert_array_equal(np.bincount(part.labels, minlength=3), np.minimum(counts, most))
    np.testing.assert_array_equal(
        np.bincount(part.test_labels, minlength=3), np.minimum(counts, test_most)
    )
    # Every image still has its own label.
    by_first_pixel = {
        int(p[0, 0, 0]): y for p, y in zip(whole.inputs[:], whole.labels, strict=True)
    }
    for pixels, label in zip(part.inputs[:], part.labels, strict=True):
        assert by_first_pixel[int(pixels[0, 0, 0])] == label


def test_the_draw_depends_on_the_generator_alone() -> None:
    whole = toy([0] * 20)
    one, same = (limit_per_label(whole, 5, None, rng()).inputs[:] for _ in range(2))
    other = limit_per_label(whole, 5, None, np.random.default_rng(1)).inputs[:]
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_smaller_image_is_the_mean_of_blocks() -> None:
    image = np.array([[0, 2, 10, 10], [4, 2, 10, 14]] * 2, np.uint8).reshape(1, 1, 4, 4)
    data = from_arrays(image, [0], test_inputs=image, test_labels=[0], label_names=["a"])
    small = downscale(data, 2)
    assert small.inputs[:].tolist() == [[[[2, 11], [2, 11]]]]
    assert small.inputs.dtype == np.uint8
    assert small.notes == ("arrays: images of 2x2, official 4x4",)
    assert downscale(data, 4) is data


@pytest.mark.parametrize("size", [0, 3, 5, 16])
def test_a_size_that_does_not_divide_the_image_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match=rf"size = {size} does not divide .* give one of 1, 2, 4"):
        catalog.load("digits", size=size, rng=rng())


def test_digits_can_be_downscaled() -> None:
    assert catalog.load("digits", size=4, rng=rng()).input_shape == (1, 4, 4)


@pytest.mark.parametrize("limits", [(0, None), (None, -1)])
def test_no_images_at_all_are_refused(limits: tuple[int | None, int | None]) -> None:
    with pytest.raises(BadInput, match="keeps no images; give 1 or more"):
        limit_per_label(toy([0, 1]), *limits, rng())
