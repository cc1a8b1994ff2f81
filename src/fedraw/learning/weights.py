"""Loads weights from a file: a published checkpoint, or the final model of an earlier run.

The file must have all tensors of the module and no others. The classifier head is an exception: it
does not change if the file has no head, or a head for another number of classes. Loading never runs
code from a file.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from fedraw.core.text import several
from fedraw.errors import BadInput
from fedraw.learning.vectors import layout_of

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class LoadedWeights:
    """The tensors that were loaded from a file.

    >>> print(LoadedWeights("resnet18.pth", 100, ("fc.weight", "fc.bias")))
    resnet18.pth: 100 tensors loaded; new: fc.weight, fc.bias
    """

    file: str
    loaded: int
    new: tuple[str, ...] = ()  # tensors of the head that are not from the file
    ignored: tuple[str, ...] = ()  # tensors of the file that are not used: counters, another head
    sha256: str = ""

    def __str__(self) -> str:
        new = f"; new: {', '.join(self.new)}" if self.new else ""
        return f"{self.file}: {self.loaded} tensors loaded{new}"


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors of a file by name, and the names of tensors that are not floating point."""

    floats: Tensors
    counters: tuple[str, ...]
    sha256: str


def load_weights(module: nn.Module, path: Path | str) -> LoadedWeights:
    """Load a .pth, .pt or .safetensors file into the module; an error leaves it unchanged."""
    path = Path(path)
    file = read_tensors(path)
    wanted, floats = _wanted(module), file.floats
    new, foreign = _new_head(module, floats), _unused_head(wanted, floats)
    _refuse_names(wanted, floats, {*new, *foreign}, module, path)
    chosen = [name for name in wanted if name in floats and name not in new]
    if not chosen:
        raise BadInput(f"{path} has no tensor that fits this model; give a file of the same model")
    values = {name: _checked_values(name, floats[name], wanted[name], path) for name in chosen}
    with torch.no_grad():
        for name, value in values.items():
            wanted[name].copy_(value)
    unused = [name for name in floats if name not in values]
    return LoadedWeights(path.name, len(chosen), new, (*file.counters, *unused), file.sha256)


def read_tensors(path: Path) -> TensorFile:
    """Read a .safetensors, .pth or .pt file of tensors; a .pth may have them in 'state_dict'."""
    content = _content(path)
    named = _named(_tensors(content, path), path)
    floats = {name: value for name, value in named.items() if value.is_floating_point()}
    counters = tuple(name for name in named if name not in floats)
    return TensorFile(floats, counters, hashlib.sha256(content).hexdigest())


def _wanted(module: nn.Module) -> Tensors:
    everything = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {segment.name: everything[segment.name] for segment in layout_of(module).segments}


def _new_head(module: nn.Module, floats: Tensors) -> tuple[str, ...]:
    """Return the names of the module's head if the file has none, or one for other classes."""
    layout = layout_of(module)
    head = [segment for segment in (layout.head_weight, layout.head_bias) if segment is not None]
    found = [segment for segment in head if segment.name in floats]
    other_classes = head and all(
        floats[segment.name].shape[:1] != segment.shape[:1]
        and floats[segment.name].shape[1:] == segment.shape[1:]
        for segment in found
    )
    return tuple(segment.name for segment in head) if other_classes else ()


def _unused_head(wanted: Tensors, floats: Tensors) -> list[str]:
    """Return the names of a head in the file if the module, a backbone, has none."""
    extra = {name: floats[name] for name in floats if name not in wanted}
    matrices = [tensor for tensor in extra.values() if tensor.ndim == 2]
    if len(matrices) != 1 or len(extra) > 2 or any(t.ndim == 2 for t in wanted.values()):
        return []
    rows = matrices[0].shape[:1]
    return list(extra) if all(tensor.shape[:1] == rows for tensor in extra.values()) else []


def _refuse_names(
    wanted: Tensors, floats: Tensors, free: set[str], module: nn.Module, path: Path
) -> None:
    saved = module.state_dict().keys()  # without non-persistent buffers, with all tied names
    missing = [name for name in wanted if name in saved and name not in {*floats, *free}]
    unknown = [name for name in floats if name not in {*wanted, *saved, *free}]
    if missing or unknown:
        lacks = f"lacks {several(missing)}" if missing else ""
        has = f"has {several(unknown)}, which the model lacks" if unknown else ""
        raise BadInput(
            f"{path} {' and '.join(filter(None, (lacks, has)))}; give a file of the same model"
        )


def _checked_values(
    name: str, found: torch.Tensor, wanted: torch.Tensor, path: Path
) -> torch.Tensor:
    shapes = tuple(found.shape), tuple(wanted.shape)
    if shapes[0] != shapes[1]:
        raise BadInput(
            f"{name} is {shapes[0]} in {path}, but {shapes[1]} in this model; {_remedy(*shapes)}"
        )
    value = found.float()
    if not bool(torch.isfinite(value).all()):
        raise BadInput(f"{name} in {path} has NaN or infinite values; give another file")
    return value


def _remedy(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if len(found) == len(wanted) == 4 and found[2:] != wanted[2:]:
        stem = {7: "imagenet", 3: "cifar"}.get(found[3])
        return f"use stem = {stem!r}" if stem else "the kernels differ; give a file of this model"
    if len(found) == len(wanted) == 4 and found[1] != wanted[1]:
        return f"load images with {found[1]} channels, not {wanted[1]}, or other weights"
    return "give a file of the same model, for images of the same size"


def _content(path: Path) -> bytes:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise BadInput(
            f"weights {path} have an unknown format; give a file that ends in .pth, .pt or "
            ".safetensors"
        )
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadInput(
            f"weights {path} cannot be read ({problem.strerror}); give the path of a file"
        ) from None


def _tensors(content: bytes, path: Path) -> Mapping[Any, Any]:
    """Return the content of the file by name, without running any code in it."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about some files before it refuses them
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as problem:  # random bytes may raise anything
        raise _load_error(path, str(problem)) from None
    return _unwrapped(found, path)


def _load_error(path: Path, problem: str) -> BadInput:
    # Torch's message is not shown, because it explains how to run the code.
    code = re.search(r"GLOBAL ([\w.]+)", problem)
    if code is None:
        return BadInput(f"{path} is not a complete checkpoint; get the file again")
    return BadInput(
        f"{path} asks to run code when it is loaded ({code[1]}), and was refused; save only "
        "tensors, with torch.save(module.state_dict(), …) or as .safetensors"
    )


def _unwrapped(found: Any, path: Path) -> Mapping[Any, Any]:
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise BadInput(
            f"{path} contains a {type(found).__name__}, not named tensors; save module.state_dict()"
        )
    return found


def _named(found: Mapping[Any, Any], path: Path) -> Tensors:
    """Return all tensors by name, without the prefix "module." of multi-device training."""
    not_tensors = [
        str(name) for name, value in found.items() if not isinstance(value, torch.Tensor)
    ]
    if not_tensors or not found:
        raise BadInput(
            f"{path} has entries that are not tensors: {several(not_tensors)}; save "
            "module.state_dict(), alone or under the key 'state_dict'"
            if not_tensors
            else f"{path} has no tensors; save module.state_dict()"
        )
    named = {str(name): value for name, value in found.items()}
    if all(name.startswith("module.") for name in named):
        return {name.removeprefix("module."): value for name, value in named.items()}
    return named
