"""The networks that a spec can name, and the place where a user's own is built."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedraw.errors import BadInput, nearest

# Shape of one image and number of classes -> a network that maps (n, *shape) to (n, classes).
ModelFactory = Callable[[tuple[int, ...], int], nn.Module]


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 64 units: small, and enough for 8x8 digits.

    >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
    4810
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 64), nn.ReLU(), nn.Linear(64, classes)
    )


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3x3 convolutions (32, 64), each halving the image, then 128 units; no batch norm.

    >>> cnn((1, 28, 28), 47)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 47])
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise BadInput(
            f"model 'cnn' needs images of shape (channels, height, width), each side 4 or more, "
            f"got {input_shape}; reshape them or use model 'mlp'"
        )
    channels, height, width = input_shape
    return nn.Sequential(
        *_halving(channels, 32),
        *_halving(32, 64),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


MODELS: dict[str, ModelFactory] = {"mlp": mlp, "cnn": cnn}


def build(
    model: str | ModelFactory,
    input_shape: tuple[int, ...],
    classes: int,
    rng: np.random.Generator,
) -> nn.Module:
    """A network with weights drawn from `rng`; torch's global generator is left as it was.

    `model` is a name from MODELS or any factory of the same form.

    >>> small = build(lambda shape, classes: nn.Linear(*shape, classes), (4,), 3,
    ...               np.random.default_rng(0))
    >>> small
    Linear(in_features=4, out_features=3, bias=True)
    """
    factory = _factory(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        module = factory(tuple(input_shape), classes)
        _check_output(module, tuple(input_shape), classes)
    return module


def _factory(model: str | ModelFactory) -> ModelFactory:
    if not isinstance(model, str):
        return model
    if model not in MODELS:
        raise BadInput(f"unknown model {model!r}; {nearest(model, MODELS)}")
    return MODELS[model]


def _check_output(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """One blank image now saves an obscure error in the middle of a run."""
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(1, *input_shape)).shape)
    except RuntimeError as error:
        raise BadInput(f"the model does not take images of shape {input_shape}: {error}") from error
    if shape != (1, classes):
        raise BadInput(
            f"the model turns one image into {shape}, and (1, {classes}) is needed: "
            "one score for each class"
        )
    module.train()


def _halving(channels: int, filters: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
