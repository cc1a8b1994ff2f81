"""Synthetic images of overlapping discs, and the filters that are made from their patches.

A dead-leaves image is a pile of opaque discs. Its edges, corners and flat areas occur at all
scales, as in photographs, so patches of such images are good filters for images that nobody has
seen yet.

A patch x of D pixel values is compared with a filter after two steps:

    x' = (x - mean(x)) / sqrt(D var(x) + FLOOR),        whitened: Z (x' - m),
    Z = U (L + EASE max(L))^(-1/2) U^T,

where m and U L U^T are the mean and the covariance of x' over patches of synthetic images. A filter
is a whitened patch of length 1. Coates, Lee, Ng: "An Analysis of Single-Layer Networks in
Unsupervised Feature Learning", AISTATS 2011, whiten patches of the training data instead.

Lee, Mumford, Huang: "Occlusion Models for Natural Images", IJCV 2001, study dead leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Keeps patches without contrast from being divided by zero; pixels are between 0 and 1.
FLOOR = 0.5
# The share of the largest variance that is added to all variances before whitening. Photographs are
# served by little of it, drawings by more. Accuracies on parts of the training data that were left
# out (seed 3 of the filters): CIFAR-10, 1,200 features: 63.4 % at 0.001, 63.8 at 0.01, 61.8 at 0.1;
# EMNIST, 1,152 features: 81.2 at 0.001 and 84.1 at 0.1 with patches of 5x5; 83.2 at 0.01 and 83.7
# at 0.1 with patches of 7x7.
EASE = 0.01

_DISCS = 120
_SMALLEST_RADIUS = 1.2
# Of the larger side of the image.
_LARGEST_RADIUS = 0.75
# The deviation of a channel from the grey level of its disc.
_COLOUR = 0.1
# Patches from which the mean and the covariance are estimated.
_PATCHES = 40_000
# Of these, at most so many are from the same image.
_EACH = 60
# Weights are rounded to this grid. Processors differ in the last bits of an eigenvalue, and
# rounding removes these differences, so that a seed gives the same filters everywhere.
_GRID = 2.0**-14


def dead_leaves(count: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Array:
    """Draw images of discs with values from 0 to 1.

    Args:
        count: The number of images.
        shape: Channels, height and width.
        rng: Draws centres, radii and colours. Radii have a density proportional to r^-3, so that
            images look alike at all scales.

    >>> images = dead_leaves(3, (1, 8, 8), np.random.default_rng(0))
    >>> images.shape, bool(images.min() >= 0), bool(images.max() <= 1)
    ((3, 1, 8, 8), True, True)

    """
    channels, height, width = shape
    small = _SMALLEST_RADIUS
    large = max(2 * small, _LARGEST_RADIUS * max(height, width))
    share = rng.random((_DISCS, count))
    squares = 1 / (small**-2 - share * (small**-2 - large**-2))  # of the radii
    y, x = rng.random((2, _DISCS, count))
    rows = (np.arange(height) - height * y[..., None]) ** 2
    columns = (np.arange(width) - width * x[..., None]) ** 2
    disc = np.zeros((count, height, width), np.int16)  # the uppermost one; the first is everywhere
    for number in range(1, _DISCS):
        distance = rows[number, :, :, None] + columns[number, :, None, :]
        np.putmask(disc, distance <= squares[number, :, None, None], number)
    grey = rng.random((count, _DISCS, 1))
    colours = grey + _COLOUR * rng.standard_normal((count, _DISCS, channels))
    images = colours[np.arange(count)[:, None, None], disc]
    return np.clip(_blurred(images), 0, 1).transpose(0, 3, 1, 2)


def _blurred(images: Array) -> Array:
    """Average each pixel with its neighbours by the weights 1, 2, 1, along both axes."""
    for axis in (1, 2):
        ends = [(1, 1) if own == axis else (0, 0) for own in range(images.ndim)]
        wide = np.pad(images, ends, mode="edge")
        length = images.shape[axis]
        before, here, after = (
            np.take(wide, np.arange(start, start + length), axis=axis) for start in range(3)
        )
        images = (before + 2 * here + after) / 4
    return images


def contrast_normalised(patches: Array) -> Array:
    """Subtract the mean of each patch (a row), and divide by its length with FLOOR.

    >>> contrast_normalised(np.array([[0.0, 1.0], [0.3, 0.3]])).round(3).tolist()
    [[-0.5, 0.5], [0.0, 0.0]]
    """
    flat = patches - patches.mean(axis=1, keepdims=True)
    return np.asarray(flat / np.sqrt((flat**2).sum(axis=1, keepdims=True) + FLOOR))


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters for contrast-normalised patches: the answers are `weights @ x' + bias`."""

    weights: Array  # (filters, D)
    bias: Array  # (filters,)


def whitened_filters(
    count: int, shape: tuple[int, int, int], size: int, rng: np.random.Generator
) -> Filters:
    """Make filters from patches of size x size pixels of dead-leaves images of this shape.

    >>> made = whitened_filters(5, (1, 8, 8), 3, np.random.default_rng(0))
    >>> made.weights.shape, made.bias.shape
    ((5, 9), (5,))
    """
    _, height, width = shape
    places = (height - size + 1) * (width - size + 1)
    each = min(_EACH, places)
    images = dead_leaves(-(-_PATCHES // each), shape, rng)
    patches = contrast_normalised(_patches(images, size, each, rng))
    mean = patches.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(patches, rowvar=False))
    scale = (np.maximum(values, 0) + EASE * values.max()) ** -0.5
    whiten = (vectors * scale) @ vectors.T
    # Flat patches have no direction: only patches with some contrast become filters.
    contrast = (patches**2).sum(axis=1)
    order = rng.permutation(len(patches))
    chosen = order[contrast[order] > 0.01][:count]
    while len(chosen) < count:  # more filters than patches: take some twice
        chosen = np.concatenate([chosen, chosen])[:count]
    found = (patches[chosen] - mean) @ whiten
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    weights = found @ whiten
    # A contrast-normalised patch has mean 0, so the mean of a filter changes nothing.
    weights -= weights.mean(axis=1, keepdims=True)
    return Filters(weights, -weights @ mean)


def _patches(images: Array, size: int, each: int, rng: np.random.Generator) -> Array:
    """Cut the same number of patches from every image, as rows with channels first."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(2, 3))
    count, channels, height, width = windows.shape[:4]
    rows = rng.integers(height, size=(count, each))
    columns = rng.integers(width, size=(count, each))
    cut = windows[np.arange(count)[:, None], :, rows, columns]
    return np.asarray(cut.reshape(count * each, channels * size * size))


def on_grid(values: Array) -> Array:
    """Round to multiples of 2^-14.

    >>> float(on_grid(np.array(0.1)))
    0.0999755859375
    """
    return np.asarray(np.round(values / _GRID) * _GRID)
