"""Converts between torch modules and flat model vectors, which all other packages use."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput

Named = list[tuple[str, torch.Tensor]]
_CPU = torch.device("cpu")


def layout_of(module: nn.Module) -> Layout:
    """Return the position of each tensor of a module in its vector.

    Trainable parameters come first, in the module's order. Then come tensors that gradients do not
    change: frozen parameters, and the running mean and variance of batch norm. Integer buffers are
    left out. A tied parameter has one position, under the first of its names.

    >>> layout = layout_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> layout.parameter_count, [s.name for s in layout.segments][-2:]
    (15, ['1.running_mean', '1.running_var'])
    """
    trainable, fixed = _tensors(module)
    return Layout.of(_shapes(trainable), _shapes(fixed))


def to_vector(module: nn.Module) -> Vector:
    """Copy the module's state into a vector, in the order of `layout_of`.

    >>> to_vector(nn.BatchNorm1d(2, affine=False)).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    trainable, fixed = _tensors(module)
    flat = [tensor.detach().numpy().ravel() for _, tensor in trainable + fixed]
    return np.concatenate(flat, dtype=np.float32)


def tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Return copies of named arrays as torch tensors, for `load_state_dict`.

    >>> tensors({"bias": np.ones(2, np.float32)})
    {'bias': tensor([1., 1.])}
    """
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def load_vector(module: nn.Module, layout: Layout, vector: Vector) -> None:
    """Copy the values of a vector into the tensors of a module."""
    check_size(vector, layout.size)
    tensors = _by_name(module)
    with torch.no_grad():
        for segment in layout.segments:
            values = torch.from_numpy(vector[segment.slice].copy())
            tensors[segment.name].copy_(values.view(segment.shape))


def read_vector(module: nn.Module, layout: Layout) -> Vector:
    """Copy the tensors of a module into a vector; they may have any type and device.

    >>> module = nn.Linear(1, 1)
    >>> load_vector(module, layout_of(module), np.array([2, 3], np.float32))
    >>> read_vector(module.double(), layout_of(nn.Linear(1, 1)))
    array([2., 3.], dtype=float32)
    """
    tensors, vector = _by_name(module), np.empty(layout.size, np.float32)
    for segment in layout.segments:
        tensor = tensors.get(segment.name)
        if tensor is None or tuple(tensor.shape) != segment.shape:
            now = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}"
            raise BadInput(
                f"after training, tensor {segment.name!r} of shape {segment.shape} {now}; train "
                "the model's own tensors in place"
            )
        vector[segment.slice] = tensor.detach().float().cpu().numpy().ravel()
    return vector


def standalone_copy(module: nn.Module) -> nn.Module:
    """Copy a module to the CPU; the copy's tensors have their own memory and no gradients."""
    copied = copy.deepcopy(module).cpu()
    for tensor in [*copied.parameters(), *copied.buffers()]:
        tensor.grad = None
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return copied


class FlatModule:
    """A module whose state is one flat tensor, and whose gradients are another.

    The module's own tensors become views of them. Loading or reading a vector is therefore one
    copy, and a step of SGD is one operation, whatever the number of layers. The module is changed
    in place, so bind it to one FlatModule only. On a device other than the CPU, vectors pass
    through a copy on the host.

    >>> flat = FlatModule(nn.Linear(2, 1))
    >>> flat.load(np.array([1, 2, 3], dtype=np.float32))
    >>> flat.module.weight.tolist(), flat.module.bias.tolist()
    ([[1.0, 2.0]], [3.0])
    """

    def __init__(self, module: nn.Module, device: torch.device = _CPU) -> None:
        self.layout = layout_of(module)
        self.flat = torch.from_numpy(to_vector(module)).to(device)
        self.grad = torch.zeros(self.layout.parameter_count, device=device)
        self._host = self.flat.cpu()  # on the CPU this is `flat` itself, without a copy
        self._array: Vector = self._host.numpy()
        self.module = module.to(device)
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        trainable, fixed = _named(module)
        for tensor, view in zip(trainable + fixed, self._views(self.flat), strict=True):
            tensor[1].data = view
        for tensor, view in zip(trainable, self._views(self.grad), strict=False):
            tensor[1].grad = view
        self.trainable = [tensor for _, tensor in trainable]

    @property
    def parameters(self) -> torch.Tensor:
        """The trainable part of `flat`, of which `grad` is the gradient."""
        return self.flat[self.layout.parameters]

    def load(self, vector: Vector) -> None:
        """Load the values of a vector, and reset counters to their first values."""
        check_size(vector, self.layout.size)
        np.copyto(self._array, vector)
        self.flat.copy_(self._host)
        # Without this, batch norm with momentum=None would depend on the previous client.
        for buffer, first in self._counters:
            buffer.copy_(first)

    def vector(self) -> Vector:
        """Return a copy of the current values."""
        self._host.copy_(self.flat)
        return self._array.copy()

    def _views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        for segment in self.layout.segments:
            if segment.start + segment.size <= len(flat):
                yield flat[segment.slice].view(segment.shape)


def check_size(vector: Vector, size: int) -> None:
    """Raise BadInput unless the vector has the size of the model."""
    if vector.shape != (size,):
        raise BadInput(
            f"a vector of shape {vector.shape} does not fit this model of {size} values; give a "
            "vector of the same model"
        )


def _by_name(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return all tensors under all of their names; a tied parameter has several."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(module.named_buffers(remove_duplicate=False)), **dict(parameters)}


def _tensors(module: nn.Module) -> tuple[Named, Named]:
    trainable, fixed = _named(module)
    _check([*trainable, *fixed])
    return trainable, fixed


def _named(module: nn.Module) -> tuple[Named, Named]:
    parameters = list(module.named_parameters())
    buffers = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    trainable = [(name, p) for name, p in parameters if p.requires_grad]
    frozen = [(name, p) for name, p in parameters if not p.requires_grad]
    return [*trainable], [*frozen, *buffers]


def _check(tensors: Named) -> None:
    places: dict[int, str] = {}
    for name, tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise BadInput(
                f"tensor {name!r} is {tensor.dtype} on {tensor.device}, but a model vector has "
                "torch.float32 on the cpu; convert the module with .float().cpu()"
            )
        if is_lazy(tensor):
            raise BadInput(
                f"tensor {name!r} has no shape yet; run one batch through the module first"
            )
        first = places.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if first != name:
            raise BadInput(
                f"tensors {first!r} and {name!r} share memory but are two different tensors; "
                "tie them by giving both modules the same Parameter"
            )
    if not tensors:
        raise BadInput("the model has no parameters; there is nothing to train or average")


def _shapes(tensors: Named) -> Iterable[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(tensor.shape)) for name, tensor in tensors]
