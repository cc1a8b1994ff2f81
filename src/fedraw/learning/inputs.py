"""Turns stored images into inputs of a network: bytes become 0..1, channels are normalised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedraw.errors import BadInput

Array = npt.NDArray[Any]
Pixels = Array  # uint8, 0 to 255; or float32, used unchanged
_BYTE = np.dtype(np.uint8)

# Limits of one forward pass outside of training: a ResNet keeps 64 feature maps of each image.
_MAX_IMAGES = 512
_MAX_PIXELS = 512 * 32 * 32


class ImageSequence(Protocol):
    """Images that can be sliced: an array, or an object that reads slices from a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Pixels: ...


@dataclass(frozen=True)
class Normalisation:
    """Maps each channel of pixels between 0 and 1 to (x − mean) / sd."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.sd) > 0:
            raise BadInput(
                f"mean = {self.mean} and sd = {self.sd} must have one number for each channel"
            )
        if not all(math.isfinite(mean) for mean in self.mean):
            raise BadInput(f"mean = {self.mean} must have finite numbers")
        if not all(0 < sd < math.inf for sd in self.sd):
            raise BadInput(f"sd = {self.sd} must have numbers above 0; pixels are divided by them")

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse images of a shape that does not begin with this number of channels."""
        channels = len(self.mean)
        if not shape or shape[0] != channels:
            raise BadInput(
                f"images of shape {shape} cannot be normalised with {channels} means, one for each "
                f"channel; load them with {channels} channels, or do not normalise them"
            )


# Statistics of the images on which the published ImageNet weights were trained.
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# The normalisations that a spec can name.
NORMALISATIONS: dict[str, Normalisation | None] = {"none": None, "imagenet": IMAGENET}


class Preprocessor:
    """Copies mini-batches to a device as float32, and normalises them there.

    >>> preprocess = Preprocessor(torch.device("cpu"), Normalisation((0.5,), (0.25,)))
    >>> preprocess(torch.tensor([[0], [255]], dtype=torch.uint8)).tolist()
    [[-2.0], [2.0]]
    """

    def __init__(self, device: torch.device, normalisation: Normalisation | None = None) -> None:
        self.device = device
        self._normalisation = normalisation
        if normalisation is not None:
            self._mean, self._sd = (
                torch.tensor(values, device=device)
                for values in (normalisation.mean, normalisation.sd)
            )

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self.device)
        if batch.dtype == torch.uint8:
            batch = batch.float().div_(255)
        if self._normalisation is not None:
            self._normalisation.check(tuple(batch.shape[1:]))
            shape = (-1, *[1] * (batch.ndim - 2))
            batch = (batch - self._mean.view(shape)) / self._sd.view(shape)
        return _channels_last(batch)

    def batches(self, images: torch.Tensor, size: int) -> Iterable[torch.Tensor]:
        """Split the images into mini-batches of this size, and preprocess each when it is used."""
        ready = images.dtype == torch.float32 and images.device == self.device
        if ready and self._normalisation is None:
            # For tiny networks, a call for each mini-batch would take a measurable time.
            return torch.split(_channels_last(images), size)
        return map(self, torch.split(images, size))

    def chunks(self, images: ImageSequence) -> Iterator[torch.Tensor]:
        """Yield all images in order, in chunks that bound the memory of a forward pass."""
        size = chunk_size(images[:1].shape[1:])
        for start in range(0, len(images), size):
            yield self(input_tensor(images[start : start + size]))


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Store the channels of a pixel side by side: CPUs convolve and pool up to 3 times faster."""
    # `contiguous(memory_format=...)` has no effect on images with one channel.
    return images.to(memory_format=torch.channels_last) if images.ndim == 4 else images


def chunk_size(image_shape: tuple[int, ...]) -> int:
    """Return how many images of this shape one forward pass may have.

    >>> chunk_size((1, 28, 28)), chunk_size((3, 64, 64)), chunk_size((3, 224, 224))
    (512, 128, 10)
    """
    size = math.prod(image_shape[1:])
    return max(1, min(_MAX_IMAGES, _MAX_PIXELS // max(1, size)))


def input_tensor(inputs: Array) -> torch.Tensor:
    """Convert inputs to a tensor: bytes stay uint8, whole numbers become int64, others float32.

    >>> [input_tensor(np.zeros(1, kind)).dtype for kind in ("uint8", "int32", "float64")]
    [torch.uint8, torch.int64, torch.float32]
    """
    return target_tensor(inputs) if inputs.dtype != _BYTE else tensor(inputs, _BYTE)


def target_tensor(targets: Array) -> torch.Tensor:
    """Convert targets to a tensor: whole numbers become int64, and all others float32."""
    return tensor(targets, np.int64 if targets.dtype.kind in "iu" else np.float32)


def tensor(array: Pixels, dtype: npt.DTypeLike) -> torch.Tensor:
    """Convert an array to a tensor of this type, sharing memory if possible."""
    # "W" copies read-only arrays, about which torch warns; others are not copied.
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
