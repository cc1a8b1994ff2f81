from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data import catalog
from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset
from fedraw.data.splits import downscale, limit_per_label
from fedraw.errors import BadInput


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def toy(labels: list[int], pixels: int = 4) -> Dataset:
    images = np.arange(len(labels) * pixels**2, dtype=np.float32).reshape(-1, 1, pixels, pixels)
    return from_arrays(
        images,
        labels,
        test_images=images,
        test_labels=labels,
        label_names=["a", "b", "c"],
    )


@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    most=st.integers(1, 20),
    test_most=st.integers(1, 20),
)
def test_no_label_has_more_than_asked_and_none_loses_more(
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
        int(p[0, 0, 0]): y for p, y in zip(whole.images[:], whole.labels, strict=True)
    }
    for pixels, label in zip(part.images[:], part.labels, strict=True):
        assert by_first_pixel[int(pixels[0, 0, 0])] == label


def test_the_draw_depends_on_the_generator_alone() -> None:
    whole = toy([0] * 20)
    one, same = (limit_per_label(whole, 5, None, rng()).images[:] for _ in range(2))
    other = limit_per_label(whole, 5, None, np.random.default_rng(1)).images[:]
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_smaller_image_is_the_mean_of_blocks() -> None:
    image = np.array([[0, 2, 10, 10], [4, 2, 10, 14]] * 2, np.uint8).reshape(1, 1, 4, 4)
    data = from_arrays(image, [0], test_images=image, test_labels=[0], label_names=["a"])
    small = downscale(data, 2)
    assert small.images[:].tolist() == [[[[2, 11], [2, 11]]]]
    assert small.images.dtype == np.uint8
    assert small.notes == ("arrays: images of 2x2, official 4x4",)
    assert downscale(data, 4) is data


@pytest.mark.parametrize("size", [0, 3, 5, 16])
def test_a_size_that_is_no_block_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match=rf"size = {size} does not divide .* give one of 1, 2, 4"):
        catalog.load("digits", size=size, rng=rng())


def test_digits_of_four_pixels() -> None:
    assert catalog.load("digits", size=4, rng=rng()).input_shape == (1, 4, 4)


@pytest.mark.parametrize("limits", [(0, None), (None, -1)])
def test_no_images_at_all_are_refused(limits: tuple[int | None, int | None]) -> None:
    with pytest.raises(BadInput, match="leaves no image; give a number from 1 up"):
        limit_per_label(toy([0, 1]), *limits, rng())
