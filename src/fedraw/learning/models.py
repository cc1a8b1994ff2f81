"""The networks that a spec can name, and the function that builds them or a user's network."""

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
from fedraw.learning.training import scores_of

Module = nn.Module
# Takes the shape of one sample and the number of classes, and returns a network that maps
# (n, *shape) to (n, classes).
ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
# The number of character codes of model 'text': ASCII.
CHARACTERS = 128


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build one linear layer, as a classifier of features from another network.

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


def text(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build an embedding of character codes in 8 numbers each, then 64 units.

    A sample is a text as ASCII codes below 128, and all texts have the same length.

    >>> text((14,), 25)(torch.full((5, 14), ord("a"))).shape
    torch.Size([5, 25])
    """
    if len(input_shape) != 1:
        raise BadInput(
            f"model 'text' needs texts of one length as character codes, got samples of shape "
            f"{input_shape}; use another model"
        )
    return nn.Sequential(
        nn.Embedding(CHARACTERS, 8),
        nn.Flatten(),
        nn.Linear(8 * input_shape[0], 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


MODELS: dict[str, ModelFactory] = {
    "cnn": cnn,
    "cnn-small": cnn_small,
    "linear": linear,
    "mlp": mlp,
    "resnet18": resnet18,
    "text": text,
}
_WITH_STEM: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18}


def build(
    model: str | ModelFactory,
    input_shape: tuple[int, ...],
    classes: int,
    rng: np.random.Generator,
    stem: str | None = None,
    *,
    whole_numbers: bool = False,
    any_output: bool = False,
) -> nn.Module:
    """Build a network with weights drawn from `rng`, without changing torch's global generator.

    Args:
        model: A name in MODELS, or a factory with the same signature.
        input_shape: The shape of one sample.
        classes: The number of scores that the network returns for a sample.
        rng: Draws the weights.
        stem: For 'resnet18' only: "imagenet" or "cifar".
        whole_numbers: Whether samples consist of whole numbers, such as the ids of tokens.
        any_output: Whether the network may return anything else than one score per class.

    >>> small = build(lambda shape, classes: nn.Linear(*shape, classes), (4,), 3,
    ...               np.random.default_rng(0))
    >>> small
    Linear(in_features=4, out_features=3, bias=True)

    """
    factory = _factory(model, stem)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        module = factory(tuple(input_shape), classes)
        if not isinstance(module, nn.Module):
            raise BadInput(
                f"the model function returned a {type(module).__name__}; return a torch module"
            )
        blank = torch.zeros(1, *input_shape, dtype=torch.int64 if whole_numbers else None)
        _check_output(module, blank, None if any_output else classes)
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


def _remedy(blank: torch.Tensor) -> str:
    """Return the remedy for a model that does not accept a sample of this shape."""
    if blank.ndim == 3:
        return (
            "change the model, or reshape the inputs; convolutions need a channel axis: "
            "X[:, None] has shape (n, 1, height, width)"
        )
    if blank.ndim == 2:
        return (
            "change the model, or reshape the inputs; an embedding needs whole numbers, which are "
            "inputs of type int64 (uint8 stands for 0 to 1)"
        )
    return "change the model, or reshape the inputs"


def _check_output(module: nn.Module, blank: torch.Tensor, classes: int | None) -> None:
    """Try one blank sample now, to avoid an obscure error in the middle of a run."""
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(scores_of(module(blank)).shape)
    except BadInput:
        raise
    except Exception as error:  # a user's model may raise anything
        raise BadInput(
            f"the model does not accept a sample of shape {tuple(blank.shape[1:])} and type "
            f"{str(blank.dtype).removeprefix('torch.')} ({error}); {_remedy(blank)}"
        ) from error
    if shape[:1] != (1,) or (classes is not None and shape != (1, classes)):
        wanted = "(1, …), one row for each sample" if classes is None else f"(1, {classes})"
        raise BadInput(
            f"the model maps one sample to shape {shape}, not {wanted}; "
            "make its last layer return one score for each class"
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
        *_conv_block(channels, first),
        *_conv_block(first, second),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _conv_block(channels: int, filters: int) -> tuple[nn.Module, ...]:
    # Pooling before the ReLU gives the same values and gradients with a quarter of the elements.
    return nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()
