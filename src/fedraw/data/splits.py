"""Train/test splits, and reduced versions of a dataset: fewer samples or smaller images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset, Images
from fedraw.errors import BadInput


def stratified_holdout(labels: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split positions into those to keep and those to hold out, with the same share of each label.

    A label with two or more samples has at least one on each side, so that rare labels can be both
    learned and measured. A share of 0 holds out nothing.

    >>> labels = np.array([0, 0, 0, 0, 1, 1, 2])
    >>> kept, held = stratified_holdout(labels, 0.25, np.random.default_rng(0))
    >>> len(kept), labels[held].tolist()
    (5, [0, 1])
    """
    check_share("holdout", share)
    held = [_draw(np.flatnonzero(labels == label), share, rng) for label in np.unique(labels)]
    is_held = np.zeros(len(labels), dtype=bool)
    is_held[np.concatenate(held) if held else []] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def random_holdout(n: int, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split `n` positions into those to keep and those to hold out, whatever their labels.

    >>> [len(part) for part in random_holdout(10, 0.2, np.random.default_rng(0))]
    [8, 2]
    """
    check_share("holdout", share)
    shuffled = rng.permutation(n) if share else np.arange(n)
    size = round(share * n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])


def grouped_holdout(groups: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split positions into those to keep and those to hold out, without splitting a group.

    Whole groups are drawn until the share is reached, so slightly more may be held out. At least
    one group is kept.

    >>> kept, held = grouped_holdout(np.array([7, 7, 8, 8, 9, 9]), 0.3, np.random.default_rng(0))
    >>> len(kept), len(held), held[1] - held[0]
    (4, 2, np.int64(1))
    """
    check_share("holdout", share)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    drawn = order[:-1][before[:-1] < round(share * len(groups))]
    is_held = np.isin(number, drawn)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def check_share(key: str, share: float) -> None:
    """Raise BadInput unless `share` is in [0, 1)."""
    if not 0 <= share < 1:
        raise BadInput(f"{key} = {share!r} is not a share; it must be in [0, 1)")


def limit_per_label(
    dataset: Dataset, per_label: int | None, test_per_label: int | None, rng: np.random.Generator
) -> Dataset:
    """Keep at most so many randomly drawn images of each label for training and for testing."""
    if per_label is not None:
        kept = _draw_per_label(dataset.labels, per_label, "per_label", rng)
        dataset = replace(dataset, images=dataset.images.select(kept), labels=dataset.labels[kept])
        dataset = _with_note(dataset, f"at most {per_label:,} training images of each label")
    if test_per_label is not None:
        kept = _draw_per_label(dataset.test_labels, test_per_label, "test_per_label", rng)
        test, labels = dataset.test_images.select(kept), dataset.test_labels[kept]
        dataset = replace(dataset, test_images=test, test_labels=labels)
        dataset = _with_note(dataset, f"at most {test_per_label:,} test images of each label")
    return dataset


def downscale(dataset: Dataset, size: int) -> Dataset:
    """Shrink the images to size x size pixels, each the mean of a block of the original pixels."""
    *_, height, width = dataset.input_shape
    if height != width or not 1 <= size <= height or height % size:
        sizes = [str(side) for side in range(1, height) if height % side == 0]
        raise BadInput(
            f"size = {size} does not divide the {height} x {width} pixels of dataset "
            f"{dataset.name!r}; give one of {', '.join(sizes)}"
        )
    if size == height:
        return dataset
    images, test = (_block_means(part, size) for part in (dataset.images, dataset.test_images))
    changed = replace(dataset, images=images, test_images=test)
    return _with_note(changed, f"images of {size}x{size}, official {height}x{width}")


def _draw(positions: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0:
        return positions[:0]
    size = min(max(1, round(share * len(positions))), len(positions) - 1)
    return rng.permutation(positions)[:size]


def _with_note(dataset: Dataset, note: str) -> Dataset:
    return replace(dataset, notes=(*dataset.notes, f"{dataset.name}: {note}"))


def _draw_per_label(labels: Ints, most: int, key: str, rng: np.random.Generator) -> Ints:
    if most < 1:
        raise BadInput(f"data.{key} = {most} leaves no image; give a number from 1 up")
    order = rng.permutation(len(labels))
    # Keep the first `most` of each label in the drawn order.
    by_label = order[np.argsort(labels[order], kind="stable")]
    starts = np.searchsorted(labels[by_label], labels[by_label])
    rank = np.arange(len(labels)) - starts
    return np.sort(by_label[rank < most])


def _block_means(images: Images, size: int) -> Images:
    pixels = images[:]
    *front, height, _ = pixels.shape
    block = height // size
    means = pixels.reshape(*front, size, block, size, block).mean(axis=(-3, -1), dtype=np.float32)
    rounded = np.rint(means) if pixels.dtype == np.uint8 else means
    return Images(rounded.astype(pixels.dtype))
