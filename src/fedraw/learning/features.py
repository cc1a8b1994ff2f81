"""Features of images: the outputs of a frozen network, from which a classifier is trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.device import device_of, make_repeatable
from fedraw.learning.inputs import (
    ImageSequence,
    Normalisation,
    Pixels,
    Preprocessor,
    chunk_size,
    input_tensor,
)
from fedraw.learning.models import build
from fedraw.learning.resnet import ResNet18

Features = npt.NDArray[np.float32]
Statistics = Literal["stored", "estimated"]
Pool = Literal["mean", "mean+std"]

# Images in every forward pass, including the last one, because another size changes the bits.
_CHUNK = 32
# Maximum number of images from which the statistics of batch norm are estimated.
_MAX_ESTIMATE = 4096
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def backbone(
    name: str, input_shape: tuple[int, ...], rng: np.random.Generator, stem: str | None = None
) -> nn.Module:
    """Build a network without its last layer.

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


class PooledLayers(nn.Module):
    """Feature maps of a ResNet-18 after chosen groups of blocks, each pooled over its positions.

    Early groups respond to texture and colour, late ones to the objects of the pre-training data.
    With pool "mean+std", a map gives its mean and its standard deviation.
    """

    def __init__(self, network: ResNet18, layers: Sequence[int], pool: Pool) -> None:
        super().__init__()
        self.stem = nn.Sequential(network.conv1, network.bn1, nn.ReLU(), network.maxpool)
        groups = (network.layer1, network.layer2, network.layer3, network.layer4)
        self.groups = nn.ModuleList(groups[: max(layers)])  # later groups are not computed
        self.layers, self.pool = tuple(layers), pool

    @property
    def width(self) -> int:
        """The number of features of an image."""
        maps = sum(64 << (layer - 1) for layer in self.layers)  # 64, 128, 256, 512
        return 2 * maps if self.pool == "mean+std" else maps

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of the images, layer by layer, means before deviations."""
        x, found = self.stem(images), []
        for number, group in enumerate(self.groups, start=1):
            x = group(x)
            if number in self.layers:
                found.append(x.mean(dim=(2, 3)))
                if self.pool == "mean+std":
                    found.append(x.std(dim=(2, 3), correction=0))
        return torch.cat(found, dim=1)


def pooled_layers(module: nn.Module, layers: Sequence[int], pool: Pool) -> PooledLayers:
    """Return the backbone with the pooled maps of these layers as its output.

    >>> network = backbone("resnet18", (3, 32, 32), np.random.default_rng(0))
    >>> pooled = pooled_layers(network, [2, 3], "mean+std")
    >>> pooled(torch.zeros(1, 3, 32, 32)).shape, pooled.width
    (torch.Size([1, 768]), 768)
    """
    if not isinstance(module, ResNet18):
        raise BadInput(
            f"layers cannot be chosen in a {type(module).__name__}; use the backbone 'resnet18'"
        )
    return PooledLayers(module, layers, pool)


def features(
    module: nn.Module,
    images: ImageSequence,
    *,
    device: str = "cpu",
    normalisation: Normalisation | None = None,
    statistics: Statistics = "stored",
) -> Iterator[Features]:
    """Yield the module's output for all images in order, in arrays of up to 32 rows.

    `statistics="estimated"` computes the means and variances of batch norm from these images, or
    from 4,096 evenly spaced ones, because the statistics of a pre-trained file may belong to very
    different images. The module does not change.
    """
    if statistics not in ("stored", "estimated"):
        raise BadInput(f"statistics = {statistics!r} is unknown; use 'stored' or 'estimated'")
    torch_device = device_of(device)
    make_repeatable(torch_device)
    preprocess = Preprocessor(torch_device, normalisation)
    module = copy.deepcopy(module).to(torch_device)
    if statistics == "estimated":
        _estimate_statistics(module, images, preprocess)
    return _outputs(module.eval(), images, preprocess)


def _outputs(
    module: nn.Module, images: ImageSequence, preprocess: Preprocessor
) -> Iterator[Features]:
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        with torch.no_grad():
            found: Features = module(preprocess(input_tensor(_padded(chunk)))).cpu().numpy()
        yield found[: len(chunk)]


def _padded(chunk: Pixels) -> Pixels:
    blank = np.zeros((_CHUNK - len(chunk), *chunk.shape[1:]), chunk.dtype)
    return np.concatenate([chunk, blank]) if len(blank) else chunk


@torch.no_grad()
def _estimate_statistics(
    module: nn.Module, images: ImageSequence, preprocess: Preprocessor
) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, _NORMS)]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # give all batches the same weight
    module.train()
    for rows in _spread_batches(len(images), max(_CHUNK, chunk_size(images[:1].shape[1:]))):
        batch = np.concatenate([images[row : row + 1] for row in rows])
        module(preprocess(input_tensor(batch)))


def _spread_batches(count: int, size: int) -> list[list[int]]:
    """Return batches of equal size that each span all images, which may be sorted by label.

    >>> _spread_batches(7, 3)
    [[0, 2, 4], [1, 3, 5]]
    """
    if count < 2:
        raise BadInput(
            f"statistics = 'estimated' needs 2 or more images, got {count}; use 'stored'"
        )
    size = min(size, count)
    batches = min(count, _MAX_ESTIMATE) // size
    rows = np.arange(batches * size) * count // (batches * size)
    return [rows[first::batches].tolist() for first in range(batches)]
