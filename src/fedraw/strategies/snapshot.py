"""A strategy's state on disk: numbers in safetensors, the rest in JSON; no pickle.

The state's own type hints say how to read it back, so a strategy needs no code for this.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from safetensors.numpy import load_file, save_file

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]


def save(state: Any, folder: Path) -> None:
    """Write `state.json` and `state.safetensors` into the folder."""
    arrays: Arrays = {}
    tree = pack(state, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(tree))


def load(kind: type[T], folder: Path) -> T:
    """Read back a state of the given type, to the bit."""
    arrays = load_file(folder / "state.safetensors")
    tree = json.loads((folder / "state.json").read_text())
    restored: T = unpack(kind, tree, arrays)
    return restored


def pack(value: Any, arrays: Arrays, path: str = "state") -> Any:
    """The value as JSON; its arrays go into `arrays` under their path."""
    if isinstance(value, np.ndarray):
        arrays[path] = np.ascontiguousarray(value)
        return None
    if is_dataclass(value):
        kept = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        packed = {name: pack(v, arrays, f"{path}.{name}") for name, v in kept.items()}
        return {"type": type(value).__name__, **packed}
    if isinstance(value, Mapping):  # pairs, because a JSON key is always text
        return [[k, pack(v, arrays, f"{path}.{i}")] for i, (k, v) in enumerate(value.items())]
    if isinstance(value, list | tuple):
        return [pack(v, arrays, f"{path}.{i}") for i, v in enumerate(value)]
    return value


def unpack(kind: Any, tree: Any, arrays: Mapping[str, Any], path: str = "state") -> Any:
    """The inverse of `pack`, for a value of type `kind`."""
    kind = _alternative(kind, tree)
    origin: Any = get_origin(kind) or kind
    args = get_args(kind)
    build: Any = origin
    if origin is np.ndarray:
        return arrays[path]
    if is_dataclass(origin):
        hints = get_type_hints(origin)
        names = [name for name in tree if name != "type"]
        return build(**{n: unpack(hints[n], tree[n], arrays, f"{path}.{n}") for n in names})
    if origin is dict:
        return {k: unpack(args[1], v, arrays, f"{path}.{i}") for i, (k, v) in enumerate(tree)}
    if origin in (list, tuple):
        return origin(unpack(args[0], v, arrays, f"{path}.{i}") for i, v in enumerate(tree))
    return tree


def _alternative(kind: Any, tree: Any) -> Any:
    """Of a union, the dataclass that was packed; scalars need no choice."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    name = tree.get("type") if isinstance(tree, dict) else None
    return next((k for k in get_args(kind) if getattr(k, "__name__", "") == name), type(tree))
