"""Files of named tensors, as others have written them; read without running what is in them."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedraw.errors import BadInput

Tensors = dict[str, torch.Tensor]
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class TensorFile:
    floats: Tensors
    counters: tuple[str, ...]  # names of what is not made of floats
    sha256: str


def read_tensors(path: Path) -> TensorFile:
    """A .pth or .pt file, also one that holds more under other keys, or a .safetensors file."""
    content = _content(path)
    named = _named(_tensors(content, path), path)
    floats = {name: value for name, value in named.items() if value.is_floating_point()}
    counters = tuple(name for name in named if name not in floats)
    return TensorFile(floats, counters, hashlib.sha256(content).hexdigest())


def some(names: Iterable[str]) -> str:
    """At most five of them.

    >>> some("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _content(path: Path) -> bytes:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise BadInput(f"weights {path}: a file ending in .pth, .pt or .safetensors is needed")
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadInput(
            f"weights {path} cannot be read ({problem.strerror}); give the path of a file"
        ) from None


def _tensors(content: bytes, path: Path) -> Mapping[Any, Any]:
    """What the file holds by name; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's doubts about a file that it then refuses
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as problem:  # bytes at random fail in every way there is
        raise _refusal(path, str(problem)) from None
    return _unwrapped(found, path)


def _refusal(path: Path, problem: str) -> BadInput:
    # Torch's own text is not shown: it tells how to run the code after all.
    code = re.search(r"GLOBAL ([\w.]+)", problem)
    if code is None:
        return BadInput(f"{path} is no checkpoint, or not all of one; get the file again")
    return BadInput(
        f"{path} asks to run code as it is read ({code[1]}), and was not read; save tensors alone, "
        "with torch.save(module.state_dict(), …) or as .safetensors"
    )


def _unwrapped(found: Any, path: Path) -> Mapping[Any, Any]:
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} holds a {type(found).__name__}, and tensors by name are needed")
    return found


def _named(found: Mapping[Any, Any], path: Path) -> Tensors:
    """All tensors, without the "module." that training on several devices puts before names."""
    strange = [str(name) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    if strange or not found:
        raise BadInput(
            f"{path} is no table of tensors: {some(strange) or 'it is empty'}; save "
            "module.state_dict(), or that under the key 'state_dict'"
        )
    named = {str(name): value for name, value in found.items()}
    if all(name.startswith("module.") for name in named):
        return {name.removeprefix("module."): value for name, value in named.items()}
    return named
