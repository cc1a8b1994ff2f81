"""From stored images to what a network is fed: 0..255 becomes 0..1, then channels are scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedraw.errors import BadInput

Pixels = npt.NDArray[Any]  # uint8, 0 to 255; or float32, taken as it is
_BYTE = np.dtype(np.uint8)

# Bound what one forward pass holds outside of training: a ResNet keeps 64 maps of an image.
_MOST_IMAGES = 512
_MOST_PIXELS = 512 * 32 * 32


class Images(Protocol):
    """An array, or what reads one from a file slice by slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Pixels: ...


@dataclass(frozen=True)
class Scale:
    """(x − mean) / sd for each channel, of pixels between 0 and 1."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.sd) > 0:
            raise BadInput(
                f"mean = {self.mean} and sd = {self.sd} must have one number for each channel"
            )
        if not all(math.isfinite(mean) for mean in self.mean):
            raise BadInput(f"mean = {self.mean} must be finite numbers")
        if not all(0 < sd < math.inf for sd in self.sd):
            raise BadInput(f"sd = {self.sd} divides pixels; all must be above 0")


# Of the images that the published ImageNet weights were trained on.
IMAGENET = Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# The ways to scale that a spec can name.
SCALES: dict[str, Scale | None] = {"none": None, "imagenet": IMAGENET}


class Inputs:
    """Brings batches to a device, as float32 and scaled.

    >>> inputs = Inputs(torch.device("cpu"), Scale((0.5,), (0.25,)))
    >>> inputs(torch.tensor([[0], [255]], dtype=torch.uint8)).tolist()
    [[-2.0], [2.0]]
    """

    def __init__(self, device: torch.device, scale: Scale | None = None) -> None:
        self._device = device
        self._scale = scale
        if scale is not None:
            self._mean, self._sd = (torch.tensor(v, device=device) for v in (scale.mean, scale.sd))

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self._device)
        if batch.dtype == torch.uint8:
            batch = batch.float().div_(255)
        if self._scale is not None:
            batch = self._scaled(batch, len(self._scale.mean))
        return _laid_out(batch)

    def batches(self, images: torch.Tensor, size: int) -> Iterable[torch.Tensor]:
        """So many at a time, each brought over when it is its turn."""
        ready = images.dtype == torch.float32 and images.device == self._device
        if ready and self._scale is None:
            # All at once: for tiny networks a call for each batch can be measured.
            return torch.split(_laid_out(images), size)
        return map(self, torch.split(images, size))

    def chunks(self, images: Images) -> Iterator[torch.Tensor]:
        """All images in order, as many at a time as memory is good for."""
        size = chunk_size(images[:1].shape[1:])
        for start in range(0, len(images), size):
            yield self(pixels(images[start : start + size]))

    def _scaled(self, batch: torch.Tensor, channels: int) -> torch.Tensor:
        if batch.ndim < 2 or batch.shape[1] != channels:
            raise BadInput(
                f"images of shape {tuple(batch.shape[1:])} cannot be scaled with {channels} means, "
                f"one for each channel; load them with {channels} channels, or without a scale"
            )
        shape = (channels, *[1] * (batch.ndim - 2))
        return (batch - self._mean.view(shape)) / self._sd.view(shape)


def _laid_out(images: torch.Tensor) -> torch.Tensor:
    """The colours of a pixel side by side: a CPU convolves and pools up to three times as fast."""
    # `contiguous` would leave images of one channel as they are, and gain nothing.
    return images.to(memory_format=torch.channels_last) if images.ndim == 4 else images


def chunk_size(image_shape: tuple[int, ...]) -> int:
    """How many images of this shape go through a network at once.

    >>> chunk_size((1, 28, 28)), chunk_size((3, 64, 64)), chunk_size((3, 224, 224))
    (512, 128, 10)
    """
    size = math.prod(image_shape[1:])
    return max(1, min(_MOST_IMAGES, _MOST_PIXELS // max(1, size)))


def pixels(images: Pixels) -> torch.Tensor:
    """The images as they are stored: bytes remain bytes, everything else is float32."""
    return tensor(images, _BYTE if images.dtype == _BYTE else np.float32)


def tensor(array: Pixels, dtype: npt.DTypeLike) -> torch.Tensor:
    # "W": torch warns of read-only arrays, so those are copied; all others are not.
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
