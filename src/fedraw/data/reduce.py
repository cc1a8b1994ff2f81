"""Fewer and smaller images: what makes a published protocol run on a small machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset
from fedraw.data.images import Images
from fedraw.errors import BadInput


def fewer(
    dataset: Dataset, per_label: int | None, test_per_label: int | None, rng: np.random.Generator
) -> Dataset:
    """At most so many images of each label, drawn at random, in training and in the test set."""
    if per_label is not None:
        kept = _draw(dataset.labels, per_label, "per_label", rng)
        dataset = replace(dataset, images=dataset.images.select(kept), labels=dataset.labels[kept])
        dataset = _noted(dataset, f"at most {per_label:,} training images of each label")
    if test_per_label is not None:
        kept = _draw(dataset.test_labels, test_per_label, "test_per_label", rng)
        test, labels = dataset.test_images.select(kept), dataset.test_labels[kept]
        dataset = replace(dataset, test_images=test, test_labels=labels)
        dataset = _noted(dataset, f"at most {test_per_label:,} test images of each label")
    return dataset


def smaller(dataset: Dataset, size: int) -> Dataset:
    """Images of size x size pixels, each the mean of a block of the original's."""
    *_, height, width = dataset.input_shape
    if height != width or not 1 <= size <= height or height % size:
        sizes = [str(side) for side in range(1, height) if height % side == 0]
        raise BadInput(
            f"size = {size} does not divide the {height} x {width} pixels of dataset "
            f"{dataset.name!r}; give one of {', '.join(sizes)}"
        )
    if size == height:
        return dataset
    images, test = (_blocks(part, size) for part in (dataset.images, dataset.test_images))
    changed = replace(dataset, images=images, test_images=test)
    return _noted(changed, f"images of {size}x{size}, official {height}x{width}")


def _noted(dataset: Dataset, note: str) -> Dataset:
    return replace(dataset, notes=(*dataset.notes, f"{dataset.name}: {note}"))


def _draw(labels: Ints, most: int, key: str, rng: np.random.Generator) -> Ints:
    if most < 1:
        raise BadInput(f"data.{key} = {most} leaves no image; give a number from 1 on")
    order = rng.permutation(len(labels))
    # Within each label, in the drawn order, the first `most`.
    by_label = order[np.argsort(labels[order], kind="stable")]
    starts = np.searchsorted(labels[by_label], labels[by_label])
    rank = np.arange(len(labels)) - starts
    return np.sort(by_label[rank < most])


def _blocks(images: Images, size: int) -> Images:
    pixels = images[:]
    *front, height, _ = pixels.shape
    block = height // size
    means = pixels.reshape(*front, size, block, size, block).mean(axis=(-3, -1), dtype=np.float32)
    rounded = np.rint(means) if pixels.dtype == np.uint8 else means
    return Images(rounded.astype(pixels.dtype))
