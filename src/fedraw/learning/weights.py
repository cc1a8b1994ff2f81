"""Weights from a file: a published checkpoint, or the model that an earlier run ended with.

All of the module's tensors must be in the file, and nothing else may be. One thing is free: the
classifier head, which stays as it was where the file has none or one for other classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.tensor_files import Tensors, read_tensors, some
from fedraw.learning.vectors import layout_of


@dataclass(frozen=True)
class Loaded:
    """What became of a file.

    >>> print(Loaded("resnet18.pth", 100, ("fc.weight", "fc.bias")))
    resnet18.pth: 100 tensors loaded; new: fc.weight, fc.bias
    """

    file: str
    loaded: int
    new: tuple[str, ...] = ()  # tensors of the head that are not from the file
    ignored: tuple[str, ...] = ()  # in the file, and of no use here: counters, another head
    sha256: str = ""

    def __str__(self) -> str:
        new = f"; new: {', '.join(self.new)}" if self.new else ""
        return f"{self.file}: {self.loaded} tensors loaded{new}"


def load_weights(module: nn.Module, path: Path | str) -> Loaded:
    """Fill the module from a .pth, .pt or .safetensors file; on an error it is left as it was."""
    path = Path(path)
    file = read_tensors(path)
    wanted, floats = _wanted(module), file.floats
    new, foreign = _new_head(module, floats), _foreign_head(wanted, floats)
    _refuse_names(wanted, floats, {*new, *foreign}, module, path)
    chosen = [name for name in wanted if name in floats and name not in new]
    if not chosen:
        raise BadInput(f"{path} has no tensor that fits this model; give a file of the same model")
    values = {name: _fitting(name, floats[name], wanted[name], path) for name in chosen}
    with torch.no_grad():
        for name, value in values.items():
            wanted[name].copy_(value)
    unused = [name for name in floats if name not in values]
    return Loaded(path.name, len(chosen), new, (*file.counters, *unused), file.sha256)


def _wanted(module: nn.Module) -> Tensors:
    everything = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {segment.name: everything[segment.name] for segment in layout_of(module).segments}


def _new_head(module: nn.Module, floats: Tensors) -> tuple[str, ...]:
    """The names of the module's head, where the file has none, or one with other classes."""
    layout = layout_of(module)
    head = [segment for segment in (layout.head_weight, layout.head_bias) if segment is not None]
    found = [segment for segment in head if segment.name in floats]
    other_classes = head and all(
        floats[segment.name].shape[:1] != segment.shape[:1]
        and floats[segment.name].shape[1:] == segment.shape[1:]
        for segment in found
    )
    return tuple(segment.name for segment in head) if other_classes else ()


def _foreign_head(wanted: Tensors, floats: Tensors) -> list[str]:
    """A matrix, and the bias to it, in a file for a module that has no matrix: a backbone."""
    extra = {name: floats[name] for name in floats if name not in wanted}
    matrices = [tensor for tensor in extra.values() if tensor.ndim == 2]
    if len(matrices) != 1 or len(extra) > 2 or any(t.ndim == 2 for t in wanted.values()):
        return []
    rows = matrices[0].shape[:1]
    return list(extra) if all(tensor.shape[:1] == rows for tensor in extra.values()) else []


def _refuse_names(
    wanted: Tensors, floats: Tensors, free: set[str], module: nn.Module, path: Path
) -> None:
    saved = module.state_dict().keys()  # without buffers that are not kept, with all tied names
    missing = [name for name in wanted if name in saved and name not in {*floats, *free}]
    unknown = [name for name in floats if name not in {*wanted, *saved, *free}]
    if missing or unknown:
        lacks = f"lacks {some(missing)}" if missing else ""
        has = f"has {some(unknown)}, which the model has not" if unknown else ""
        raise BadInput(
            f"{path} {' and '.join(filter(None, (lacks, has)))}; give a file of the same model"
        )


def _fitting(name: str, found: torch.Tensor, wanted: torch.Tensor, path: Path) -> torch.Tensor:
    shapes = tuple(found.shape), tuple(wanted.shape)
    if shapes[0] != shapes[1]:
        raise BadInput(
            f"{name} is {shapes[0]} in {path}, and {shapes[1]} in this model; {_remedy(*shapes)}"
        )
    value = found.float()
    if not bool(torch.isfinite(value).all()):
        raise BadInput(f"{name} in {path} has NaN or infinite values; give another file")
    return value


def _remedy(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if len(found) == len(wanted) == 4 and found[2:] != wanted[2:]:
        stem = {7: "imagenet", 3: "cifar"}.get(found[3])
        return f"use stem = {stem!r}" if stem else "the kernels differ: give a file of this model"
    if len(found) == len(wanted) == 4 and found[1] != wanted[1]:
        return f"load images with {found[1]} channels, not {wanted[1]}, or other weights"
    return "give a file of the same model, for images of the same size"
