"""Fully connected networks, many at once: their gradients in closed form.

For networks this small, a call into a framework costs more than its arithmetic. One call here
serves all networks of a stack, and nothing is recorded for a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import nn

from fedraw.core.layout import Layout, Segment
from fedraw.core.types import Ints
from fedraw.errors import BadInput

# Of a stack the first axis counts networks, of a mini-batch the second counts samples.
Stacked = npt.NDArray[np.float32]


class Dense(NamedTuple):
    """A linear layer by its place in the vector, and whether a ReLU follows it."""

    weight: Segment
    bias: Segment | None
    relu: bool


def dense_layers(module: nn.Module, layout: Layout, input_shape: tuple[int, ...]) -> list[Dense]:
    """The layers of a module made of Linear, ReLU and a leading Flatten; others are refused.

    >>> from fedraw.learning.vectors import layout_of
    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [layer.relu for layer in dense_layers(module, layout_of(module), (2, 2))]
    [True, False]
    """
    segments = {segment.name: segment for segment in layout.segments}
    layers: list[Dense] = []
    flat = len(input_shape) == 1
    for name, layer in _leaves(module):
        if _hooked(layer):
            raise _unsupported(name, layer, " (it has hooks)")
        if _flattens(layer):
            flat = True
        elif type(layer) is nn.Linear and flat:
            layers.append(_dense(name, layer, segments))
        elif type(layer) is nn.ReLU and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        else:
            raise _unsupported(name, layer)
    return layers


class DenseStack:
    """Networks of the same layers; the rows of `values` are their vectors.

    >>> from fedraw.learning.vectors import layout_of
    >>> module = nn.Linear(1, 2, bias=False)
    >>> layers = dense_layers(module, layout_of(module), (1,))
    >>> stack = DenseStack(layers, np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
    >>> stack.differentiate(np.ones((1, 1, 1), np.float32), np.array([[0]]), np.float32([[1]]))
    >>> stack.gradient.tolist()
    [[-0.5, 0.5]]
    """

    def __init__(self, layers: Sequence[Dense], values: Stacked, gradient: Stacked) -> None:
        self.values, self.gradient = values, gradient
        self._layers = layers
        self._tensors = [_views(layer, values) for layer in layers]
        self._grads = [_views(layer, gradient) for layer in layers]
        self._classes = layers[-1].weight.shape[0]

    def first(self, count: int) -> DenseStack:
        """The first so many networks, in the same memory."""
        return DenseStack(self._layers, self.values[:count], self.gradient[:count])

    def differentiate(self, inputs: Stacked, labels: Ints, shares: Stacked) -> None:
        """Set `gradient` to that of Σ share · cross-entropy over each network's own samples."""
        outputs = self._forward(inputs)
        flow = softmax(outputs[-1])
        flow *= shares[:, :, None]
        own = np.arange(labels.size) * self._classes + labels.ravel()
        flow.reshape(-1)[own] -= shares.ravel()
        self._backward(inputs, outputs, flow)

    def _forward(self, inputs: Stacked) -> list[Stacked]:
        outputs: list[Stacked] = []
        for layer, (weight, bias) in zip(self._layers, self._tensors, strict=True):
            inputs = inputs @ weight.swapaxes(1, 2)
            if bias is not None:
                inputs += bias[:, None]
            if layer.relu:
                np.maximum(inputs, 0, out=inputs)
            outputs.append(inputs)
        return outputs

    def _backward(self, inputs: Stacked, outputs: list[Stacked], flow: Stacked) -> None:
        for i in reversed(range(len(self._layers))):
            weight, bias = self._grads[i]
            if self._layers[i].relu:
                flow *= outputs[i] > 0
            np.matmul(flow.swapaxes(1, 2), outputs[i - 1] if i else inputs, out=weight)
            if bias is not None:
                np.add.reduce(flow, axis=1, out=bias)
            if i:
                flow = flow @ self._tensors[i][0]


def softmax(scores: Stacked) -> Stacked:
    exponents: Stacked = scores - scores.max(axis=-1, keepdims=True)
    np.exp(exponents, out=exponents)
    exponents /= exponents.sum(axis=-1, keepdims=True)
    return exponents


def _views(layer: Dense, rows: Stacked) -> tuple[Stacked, Stacked | None]:
    weight = rows[:, layer.weight.slice].reshape(len(rows), *layer.weight.shape)
    return weight, None if layer.bias is None else rows[:, layer.bias.slice]


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential or _hooked(module):
        yield name, module
        return
    # Not `named_children`: it would name a layer that is used twice only once.
    for key, child in module._modules.items():
        assert child is not None
        yield from _leaves(child, f"{name}.{key}" if name else key)


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _dense(name: str, layer: nn.Linear, segments: dict[str, Segment]) -> Dense:
    prefix = f"{name}." if name else ""
    own = ("weight",) if layer.bias is None else ("weight", "bias")
    for key in own:
        if prefix + key not in segments:
            raise _unsupported(name, layer, f" (its {key} is not a parameter of its own)")
    weight, *bias = (segments[prefix + key] for key in own)
    return Dense(weight, bias[0] if bias else None, relu=False)


def _hooked(layer: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, kind) for kind in kinds)


def _unsupported(name: str, layer: nn.Module, why: str = "") -> BadInput:
    # The text of a whole network would be pages long.
    what = type(layer).__name__ if next(layer.children(), None) else str(layer)
    where = f"layer {name!r}, {what}" if name else f"a model of type {what}"
    return BadInput(
        f"the batched executor cannot train {where}{why}: it knows "
        "Flatten, then Linear and ReLU in nn.Sequential; use --executor inline or processes"
    )
