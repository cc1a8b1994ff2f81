"""Networks whose weights are drawn from a seed and never trained: convolutions, and random ReLUs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedraw.errors import BadInput
from fedraw.learning.dead_leaves import FLOOR, on_grid, whitened_filters

# Images are shrunk by a whole factor until their smaller side is below twice this many pixels.
_SIDE = 32
# Answers of a filter below this are cut off.
_THRESHOLD = 0.25


class PatchFilters(nn.Module):
    """Compares all patches of an image with fixed filters, and pools the answers.

        z = w . x' + b for each contrast-normalised patch x' and each filter (see `dead_leaves`),
        features: averages of relu(z - 0.25) and relu(-z - 0.25) over a grid of image regions.

    Args:
        input_shape: Channels, height and width of an image.
        width: The number of features.
        seed: Draws the synthetic images from whose patches the filters are made.

    >>> PatchFilters((1, 8, 8), 40, 0)(torch.rand(3, 1, 8, 8)).shape
    torch.Size([3, 40])

    """

    def __init__(self, input_shape: tuple[int, ...], width: int, seed: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise BadInput(
                "features.backbone = 'convolutions' needs images of shape (channels, height, "
                f"width), each side 4 or more, got {tuple(input_shape)}; reshape the inputs, or "
                "use 'relu'"
            )
        channels, *sides = input_shape
        self.shrink = max(1, min(sides) // _SIDE)
        height, breadth = (side // self.shrink for side in sides)
        self.size, self.grid = patch_size(min(height, breadth)), pooling(min(height, breadth))
        self.width = width
        # Both signs of a filter, in every region; the last filter may be used in part.
        count = -(-width // (2 * self.grid**2))
        rng = np.random.default_rng([seed, count, self.size])
        made = whitened_filters(count, (channels, height, breadth), self.size, rng)
        weights = made.weights.reshape(count, channels, self.size, self.size)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("bias", torch.tensor(made.bias, dtype=torch.float32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of the images, whose values are from 0 to 1."""
        if self.shrink > 1:
            images = functional.avg_pool2d(images, self.shrink)
        weights, bias = self.get_buffer("weights"), self.get_buffer("bias")
        # Filters have mean 0, so the mean of a patch need not be subtracted.
        answers = functional.conv2d(images, weights)
        answers = answers * self._inverse_length(images) + bias.view(-1, 1, 1)
        pooled = [
            functional.adaptive_avg_pool2d(torch.relu(sign * answers - _THRESHOLD), self.grid)
            for sign in (1, -1)
        ]
        return torch.stack(pooled, dim=2).flatten(1)[:, : self.width]

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
    """Return the side of patches for images whose smaller side is this."""
    return 6 if side >= 24 else max(2, side // 3 + 1)


def pooling(side: int) -> int:
    """Return into how many regions each side of the image is divided."""
    return 2
