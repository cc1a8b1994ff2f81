"""What a frozen network makes of images: computed once, and a classifier trains on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.device import device_of, make_repeatable
from fedraw.learning.inputs import Images, Inputs, Pixels, Scale, chunk_size, pixels
from fedraw.learning.models import build
from fedraw.learning.resnet import ResNet18

Features = npt.NDArray[np.float32]
Statistics = Literal["stored", "estimated"]

# Every forward pass has as many images as this, the last one too: with other sizes, other bits.
_CHUNK = 32
# Images from which batch norm's statistics are estimated.
_ENOUGH = 4096
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def backbone(
    name: str, input_shape: tuple[int, ...], rng: np.random.Generator, stem: str | None = None
) -> nn.Module:
    """The network without its last layer.

    >>> network = backbone("resnet18", (3, 32, 32), np.random.default_rng(0))
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 512])
    """
    if name != "resnet18":
        raise BadInput(f"features cannot be taken from model {name!r}; use 'resnet18'")
    module = build(name, input_shape, 1, rng, stem)
    if isinstance(module, ResNet18):
        module.fc = nn.Identity()
    return module


def features(
    module: nn.Module,
    images: Images,
    *,
    device: str = "cpu",
    scale: Scale | None = None,
    statistics: Statistics = "stored",
) -> Iterator[Features]:
    """The module's output for all images in order, in arrays of up to 32 rows.

    `statistics="estimated"` computes batch norm's means and variances anew from these images, or
    4,096 of them at equal distances: those of a pre-trained file may be of quite other pictures.
    The module itself is not changed.
    """
    if statistics not in ("stored", "estimated"):
        raise BadInput(f"statistics = {statistics!r} is neither 'stored' nor 'estimated'")
    place = device_of(device)
    make_repeatable(place)
    inputs = Inputs(place, scale)
    module = copy.deepcopy(module).to(place)
    if statistics == "estimated":
        _estimate_statistics(module, images, inputs)
    return _outputs(module.eval(), images, inputs)


def _outputs(module: nn.Module, images: Images, inputs: Inputs) -> Iterator[Features]:
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        with torch.no_grad():
            found: Features = module(inputs(pixels(_filled(chunk)))).cpu().numpy()
        yield found[: len(chunk)]


def _filled(chunk: Pixels) -> Pixels:
    blank = np.zeros((_CHUNK - len(chunk), *chunk.shape[1:]), chunk.dtype)
    return np.concatenate([chunk, blank]) if len(blank) else chunk


@torch.no_grad()
def _estimate_statistics(module: nn.Module, images: Images, inputs: Inputs) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, _NORMS)]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # every batch counts the same
    module.train()
    for rows in _spread(len(images), max(_CHUNK, chunk_size(images[:1].shape[1:]))):
        batch = np.concatenate([images[row : row + 1] for row in rows])
        module(inputs(pixels(batch)))


def _spread(count: int, size: int) -> list[list[int]]:
    """Batches of equal size, each of which spans all images: they may be sorted by label.

    >>> _spread(7, 3)
    [[0, 2, 4], [1, 3, 5]]
    """
    if count < 2:
        raise BadInput(
            f"statistics = 'estimated' needs 2 images or more, got {count}; use 'stored'"
        )
    size = min(size, count)
    batches = min(count, _ENOUGH) // size
    rows = np.arange(batches * size) * count // (batches * size)
    return [rows[first::batches].tolist() for first in range(batches)]
