"""Networks whose weights are drawn from a seed and never trained: convolutions and random ReLUs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedraw.errors import BadInput
from fedraw.learning.dead_leaves import FLOOR, Array, on_grid, whitened_filters

# Images are shrunk by a whole factor until their smaller side is below twice this many pixels.
_SIDE = 32
_SMALLEST_SIDE = 4
# The most answers of filters that are held at once.
_MAX_ANSWERS = 4_000_000
# Answers of a filter below this are cut off.
_THRESHOLD = 0.25
# Columns whose values, after asinh, span less than this, are too flat for `RandomReLU`.
_WEAK = 0.2
# The largest feature of `RandomReLU`: a ReLU is flat where samples are very large.
MOST = 12.0
# The length of the random directions of `RandomReLU`.
_LENGTH = 2.0


class PatchFilters(nn.Module):
    """Compares all patches of an image with fixed filters, and pools the answers.

        z = w . x' + b for each contrast-normalised patch x' and each filter (see `dead_leaves`),
        features: averages of relu(z - 0.25) and relu(-z - 0.25) over a grid of image regions.

    Args:
        input_shape: Channels, height and width of an image.
        width: The number of features.

    >>> module = PatchFilters((1, 8, 8), 40).drawn(seed=0)
    >>> module(torch.rand(3, 1, 8, 8)).shape
    torch.Size([3, 40])

    """

    def __init__(self, input_shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < _SMALLEST_SIDE:
            raise BadInput(
                "feature map 'convolutions' needs images of shape (channels, height, width), each "
                f"side {_SMALLEST_SIDE} or more, got {tuple(input_shape)}; reshape the inputs, or "
                "use 'relu'"
            )
        channels, *sides = input_shape
        self.width, self.shrink = width, max(1, min(sides) // _SIDE)
        self.image_shape = channels, sides[0] // self.shrink, sides[1] // self.shrink
        self.size = patch_size(min(self.image_shape[1:]))
        self.grid = regions(channels * self.size**2)
        # Both signs of a filter, in every region; of the last filter, only some may be used.
        self.count = -(-width // (2 * self.grid**2))
        self.register_buffer("weights", torch.zeros(self.count, channels, self.size, self.size))
        self.register_buffer("bias", torch.zeros(self.count))

    def drawn(self, seed: int) -> PatchFilters:
        """Make the filters from patches of synthetic images, which the seed draws."""
        rng = np.random.default_rng([seed, *self.image_shape, self.size])
        made = whitened_filters(self.count, self.image_shape, self.size, rng)
        _fill(self, weights=made.weights, bias=made.bias)
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of the images, whose values are from 0 to 1."""
        if self.shrink > 1:
            images = functional.avg_pool2d(images, self.shrink)
        return torch.cat(
            [self._pooled(part) for part in torch.split(images, self._at_once(images))]
        )

    def _pooled(self, images: torch.Tensor) -> torch.Tensor:
        weights, bias = self.get_buffer("weights"), self.get_buffer("bias")
        # Filters have mean 0, so the mean of a patch need not be subtracted.
        answers = functional.conv2d(images, weights)
        answers.mul_(self._inverse_length(images)).add_(bias.view(-1, 1, 1))
        # relu(z - a) = max(z, a) - a, which needs no further array of this size.
        negative = answers.clamp(max=-_THRESHOLD)
        positive = answers.clamp_(min=_THRESHOLD)
        above = functional.adaptive_avg_pool2d(positive, self.grid) - _THRESHOLD
        below = -functional.adaptive_avg_pool2d(negative, self.grid) - _THRESHOLD
        return torch.stack([above, below], dim=2).flatten(1)[:, : self.width]

    def _at_once(self, images: torch.Tensor) -> int:
        """Return how many images are compared at once: a power of 2, so that batches of 32 fit.

        The system hands out small arrays again, and has to clear the memory of large ones.
        """
        answers = len(self.get_buffer("bias")) * math.prod(
            side - self.size + 1 for side in images.shape[2:]
        )
        return int(1 << max(0, min(5, (_MAX_ANSWERS // answers).bit_length() - 1)))

    def _inverse_length(self, images: torch.Tensor) -> torch.Tensor:
        """Return 1 / sqrt(D var(x) + FLOOR) of each patch x of D values."""
        values = images.shape[1] * self.size**2
        # About 0.5, where pixels are, sums of squares lose fewer digits.
        moved = images - 0.5
        mean, square = (
            functional.avg_pool2d(part.mean(dim=1, keepdim=True), self.size, stride=1)
            for part in (moved, moved**2)
        )
        return torch.rsqrt(values * torch.relu(square - mean**2) + FLOOR)


def patch_size(side: int) -> int:
    """Return the side of patches for images whose smaller side is this.

    >>> [patch_size(side) for side in (4, 8, 16, 28, 32, 60)]
    [2, 3, 4, 5, 6, 6]
    """
    return min(6, 2 + side // 8)


def regions(values: int) -> int:
    """Return into how many regions each side of the image is divided, for patches of D values.

    Patches of few values need few filters, and then more of the features can say where an answer
    was. Chosen on parts of the training data of digits, EMNIST and CIFAR-10, with seeds 1 and 2.

    >>> regions(25), regions(108)
    (3, 2)
    """
    return 3 if values < 64 else 2


class RandomReLU(nn.Module):
    """relu(W asinh(x) + b), at most 12: rows of W are random directions of length 2, b is normal.

    asinh(x) is about x below 1 in size, and about ±log(2 |x|) above. So columns need not be scaled:
    a column from 0 to 100,000 becomes one from 0 to 12. What varies little beside its size, such as
    a year, and what is far smaller than 1 has little effect; see `weak_columns`.

    >>> RandomReLU((3,), 5).drawn(seed=0)(torch.zeros(2, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(self, input_shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        values = math.prod(input_shape)
        if not values:
            raise BadInput(
                f"feature map 'relu' needs inputs with values, got shape {tuple(input_shape)}; "
                "give at least one column"
            )
        self.width = width
        self.register_buffer("weights", torch.zeros(width, values))
        self.register_buffer("bias", torch.zeros(width))

    def drawn(self, seed: int) -> RandomReLU:
        """Draw the weights from the seed."""
        width, values = self.get_buffer("weights").shape
        rng = np.random.default_rng([seed, width, values])
        directions = rng.standard_normal((width, values))
        directions *= _LENGTH / np.linalg.norm(directions, axis=1, keepdims=True)
        _fill(self, weights=directions, bias=rng.standard_normal(width))
        return self

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the features of the inputs, whose shape is not considered."""
        weights, bias = self.get_buffer("weights"), self.get_buffer("bias")
        return functional.linear(inputs.flatten(1).asinh(), weights, bias).clamp(0, MOST)


def weak_columns(samples: Array) -> list[int]:
    """Return the columns that vary too little for `RandomReLU` to distinguish their values.

    Columns that are constant tell nothing under any map and are left out.

    >>> weak_columns(np.array([[0.0, 1990.0, 0.001, 7.0], [9e4, 2020.0, 0.002, 7.0]]))
    [1, 2]
    """
    spread = np.ptp(np.arcsinh(samples.reshape(len(samples), -1)), axis=0)
    return [int(own) for own in np.flatnonzero((spread > 0) & (spread < _WEAK))]


def _fill(module: nn.Module, **values: Array) -> None:
    """Set buffers to these values, rounded, because processors differ in their last bits."""
    for name, own in values.items():
        buffer = module.get_buffer(name)
        buffer.copy_(torch.tensor(on_grid(own), dtype=torch.float32).view(buffer.shape))
