"""The networks that a spec can name, and how they or a user's own network are built."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fedraw.errors import BadInput, nearest
from fedraw.learning.resnet import resnet18

Module = nn.Module
# Takes the shape of one image and the number of classes; returns a network that maps (n, *shape)
# to (n, classes).
ModelFactory = Callable[[tuple[int, ...], int], nn.Module]


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build one linear layer: a classifier for features that another network has computed.

    >>> sum(p.numel() for p in linear((512,), 10).parameters())
    5130
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a network with one hidden layer of 64 units, enough for 8x8 digits.

    >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
    4810
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 64), nn.ReLU(), nn.Linear(64, classes)
    )


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build two 3x3 convolutions (32 and 64 maps) with pooling, then 128 units; no batch norm.

    >>> cnn((1, 28, 28), 47)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 47])
    """
    return _cnn("cnn", (32, 64, 128), input_shape, classes)


def cnn_small(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build `cnn` at half the width: 16 and 32 maps, then 64 units.

    >>> sum(p.numel() for p in cnn_small((1, 28, 28), 10).parameters())
    105866
    """
    return _cnn("cnn-small", (16, 32, 64), input_shape, classes)


MODELS: dict[str, ModelFactory] = {
    "cnn": cnn,
    "cnn-small": cnn_small,
    "linear": linear,
    "mlp": mlp,
    "resnet18": resnet18,
}
_WITH_STEM: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18}


def build(
    model: str | ModelFactory,
    input_shape: tuple[int, ...],
    classes: int,
    rng: np.random.Generator,
    stem: str | None = None,
) -> nn.Module:
    """Build a network with weights drawn from `rng`, without changing torch's global generator.

    `model` is a name in MODELS or a factory with the same signature; `stem` is for 'resnet18' only.

    >>> small = build(lambda shape, classes: nn.Linear(*shape, classes), (4,), 3,
    ...               np.random.default_rng(0))
    >>> small
    Linear(in_features=4, out_features=3, bias=True)
    """
    factory = _factory(model, stem)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        module = factory(tuple(input_shape), classes)
        _check_output(module, tuple(input_shape), classes)
    return module


def _factory(model: str | ModelFactory, stem: str | None) -> ModelFactory:
    if isinstance(model, str) and model not in MODELS:
        raise BadInput(f"unknown model {model!r}; {nearest(model, MODELS)}")
    if stem is None:
        return MODELS[model] if isinstance(model, str) else model
    if not isinstance(model, str) or model not in _WITH_STEM:
        name: Any = model if isinstance(model, str) else getattr(model, "__name__", "of your own")
        raise BadInput(
            f"stem = {stem!r}, but model {name!r} has no stem; leave it out, or use model "
            f"{' or '.join(map(repr, _WITH_STEM))}"
        )
    return partial(_WITH_STEM[model], stem=stem)


def _check_output(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Try one blank image now, to avoid an obscure error in the middle of a run."""
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(1, *input_shape)).shape)
    except RuntimeError as error:
        raise BadInput(
            f"the model does not accept images of shape {input_shape} ({error}); change the model, "
            "or reshape the images"
        ) from error
    if shape != (1, classes):
        raise BadInput(
            f"the model maps one image to shape {shape}, not (1, {classes}); "
            "let its last layer return one score for each class"
        )
    module.train()


def _cnn(
    name: str, widths: tuple[int, int, int], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise BadInput(
            f"model {name!r} needs images of shape (channels, height, width), each side 4 or more, "
            f"got {input_shape}; reshape them or use model 'mlp'"
        )
    channels, height, width = input_shape
    first, second, hidden = widths
    return nn.Sequential(
        *_halving(channels, first),
        *_halving(first, second),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _halving(channels: int, filters: int) -> tuple[nn.Module, ...]:
    # Pooling before the ReLU gives the same values and gradients with a quarter of the elements.
    return nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()
