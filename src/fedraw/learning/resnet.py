"""ResNet-18 with the tensor names and shapes of torchvision, so that its weights fit.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR 2016.

    y = relu(F(x) + x),   F = two 3x3 convolutions with batch norm,

eight times, in four groups of 64, 128, 256 and 512 maps. If a group halves the image, a 1x1
convolution with stride 2 is applied to the x in the sum.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from fedraw.errors import BadInput

Stem = Literal["imagenet", "cifar"]

# The smallest side for which the last group still has one pixel.
_SMALLEST = {"imagenet": 32, "cifar": 8}


def resnet18(input_shape: tuple[int, ...], classes: int, stem: Stem = "imagenet") -> ResNet18:
    """Build a ResNet-18 with a stem for large or for small images.

    Stem "imagenet" is 7x7 with stride 2, then pooling; "cifar" is 3x3 with stride 1.

    >>> network = resnet18((3, 224, 224), 1000)
    >>> sum(p.numel() for p in network.parameters()), len(network.state_dict())
    (11689512, 122)
    """
    if stem not in _SMALLEST:
        raise BadInput(f"stem = {stem!r} is unknown; use 'imagenet' or 'cifar'")
    smallest = _SMALLEST[stem]
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        small = ", or use stem = 'cifar' for 8 or more" if stem == "imagenet" else ""
        raise BadInput(
            f"model 'resnet18' with stem {stem!r} needs images of shape (channels, height, width), "
            f"each side {smallest} or more, got {input_shape}; enlarge them{small}"
        )
    return ResNet18(input_shape[0], classes, stem)


class ResNet18(nn.Module):
    """The network; `fc` is its classifier head."""

    def __init__(self, channels: int, classes: int, stem: Stem) -> None:
        super().__init__()
        size, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = _convolution(channels, 64, size, stride)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 64))
        self.layer2 = nn.Sequential(ResidualBlock(64, 128, stride=2), ResidualBlock(128, 128))
        self.layer3 = nn.Sequential(ResidualBlock(128, 256, stride=2), ResidualBlock(256, 256))
        self.layer4 = nn.Sequential(ResidualBlock(256, 512, stride=2), ResidualBlock(512, 512))
        self.fc: nn.Module = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score per class for each image."""
        x = self.maxpool(functional.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


class ResidualBlock(nn.Module):
    """relu(F(x) + x), where F is two 3x3 convolutions with batch norm."""

    def __init__(self, inputs: int, maps: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, maps, 3, stride)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = _convolution(maps, maps, 3)
        self.bn2 = nn.BatchNorm2d(maps)
        # If the shape does not change, there are no tensors here, as in the published network.
        self.downsample: nn.Module = nn.Identity()
        if stride > 1:
            shrink = _convolution(inputs, maps, 1, stride)
            self.downsample = nn.Sequential(shrink, nn.BatchNorm2d(maps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        inner = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


def _convolution(inputs: int, maps: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, maps, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
