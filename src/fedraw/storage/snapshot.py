"""Any state as data: numbers as named arrays, the rest as JSON; no pickle. A model file, too.

A state's own type hints say how to read it back, so a strategy needs no code for this. An array
that stands in several places is kept once and shared again after reading.
"""

from __future__ import annotations

import errno
import json
import math
import stat
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.storage.files import PRIVATE_FILE, atomic_file

# The names of model files in the folders of runs and servers. Constants are the tensors of a
# server's model that no training changes.
MODEL, SERVING = "model.safetensors", "serving.safetensors"
CALIBRATED = "calibrated.safetensors"
BEST, CONSTANTS = "best.safetensors", "constants.safetensors"

# As many whole numbers are written as an array, and fewer as JSON.
_MANY = 256

T = TypeVar("T")
Array = np.ndarray[Any, Any]


class Arrays(dict[str, Array]):
    """Arrays by name; the same array gets the same name.

    An array whose id is in `beside` lies in another file: it is called what `beside` says, and is
    not kept here. Ids are good while their arrays live, so the caller has to hold on to them.
    """

    def __init__(self, beside: Mapping[int, str] = {}) -> None:
        super().__init__()
        wrong = next((name for name in beside.values() if name.isdecimal()), None)
        if wrong is not None:
            raise ValueError(f"an array beside cannot be called {wrong!r}: numbers are given here")
        self._beside = beside
        self._name_of: dict[int, str] = {}

    def keep(self, array: Array) -> str:
        """Add an array unless it is known already; return its name."""
        elsewhere = self._beside.get(id(array))
        if elsewhere is not None:
            return elsewhere
        name = self._name_of.setdefault(id(array), str(len(self)))
        self.setdefault(name, array)
        return name


def save(value: Any, folder: Path, beside: Mapping[int, str] = {}) -> None:
    """Write `state.json` and `state.safetensors` into the folder; for `beside`, see `Arrays`."""
    arrays = Arrays(beside)
    tree = pack(value, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    # `ascontiguousarray` would turn a single number into an array of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_tensors(contiguous, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")


def write_tensors(
    tensors: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; a full disk is an OSError, as for every other file.

    The process's umask decides who may read it, also as for every other file: safetensors itself
    makes files that only their owner can read.
    """
    path.unlink(missing_ok=True)
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path, dict(metadata) if metadata else None)
    except SafetensorError as problem:
        raise OSError(errno.EIO, str(problem), str(path)) from None
    path.chmod(mode)


def write_model(model: Vector, layout: Layout, path: Path, *, private: bool = False) -> None:
    """Write the model as a safetensors file, completely or not at all.

    Args:
        model: The flat vector of all parameters and statistics.
        layout: The names, shapes and positions of its tensors.
        path: The file to create or replace.
        private: Whether only the owner may read the file.

    """
    segments = layout.segments
    tensors = {s.name: np.ascontiguousarray(model[s.slice].reshape(s.shape)) for s in segments}
    with atomic_file(path) as draft:
        write_tensors(tensors, draft)
        if private:
            draft.chmod(PRIVATE_FILE)


def named_tensors(model: Vector, tensors: Iterable[Sequence[Any]]) -> dict[str, Array]:
    """The tensors of a model's vector, in the user's types.

    Args:
        model: The flat vector of all parameters and statistics.
        tensors: For each tensor, in the order of the vector: its name, shape, type and more.

    >>> named_tensors(np.ones(3, np.float32), [("w", (2,), "float32"), ("b", [1], "float16")])
    {'w': array([1., 1.], dtype=float32), 'b': array([1.], dtype=float16)}

    """
    named, start = {}, 0
    for name, shape, dtype, *_ in tensors:
        end = start + math.prod(shape)
        named[str(name)] = np.ascontiguousarray(model[start:end].reshape(shape), dtype)
        start = end
    return named


def load(kind: type[T], folder: Path, beside: Mapping[str, Array] = {}) -> T:
    """Read back a value of the given type, to the bit; `beside` are the arrays that lie elsewhere.

    A KeyError names one that neither the folder nor `beside` has.
    """
    tree, arrays = read(folder)
    restored: T = unpack(kind, tree, {**arrays, **beside})
    return restored


def read(folder: Path) -> tuple[Any, dict[str, Any]]:
    """What `save` wrote, not yet unpacked."""
    arrays = load_file(folder / "state.safetensors")
    return json.loads((folder / "state.json").read_text(encoding="utf-8")), arrays


def pack(value: Any, arrays: Arrays) -> Any:
    """The value as JSON, in which an array is {"array": its name in `arrays`}.

    Many whole numbers are {"column": name}, and a mapping of them {"keys": …, "values": …}.
    """
    if isinstance(value, np.ndarray):
        return {"array": arrays.keep(value)}
    if is_dataclass(value):
        kept = {f.name: pack(getattr(value, f.name), arrays) for f in fields(value) if f.init}
        return {"type": type(value).__name__, **kept}
    if isinstance(value, Mapping):
        values = _column(list(value.values()), arrays)
        keys = None if values is None else _column(list(value), arrays)
        if keys is not None:
            return {"keys": keys, "values": values}
        # Pairs, because a JSON key is always text.
        return [[key, pack(v, arrays)] for key, v in value.items()]
    if isinstance(value, list | tuple):
        column = _column(value, arrays)
        return column or [pack(v, arrays) for v in value]
    return value


def _column(values: Sequence[Any], arrays: Arrays) -> dict[str, str] | None:
    """Many whole numbers as an array; None if they are few, or not all of them whole numbers."""
    if len(values) < _MANY or set(map(type, values)) != {int}:
        return None
    column = np.array(values)
    return {"column": arrays.keep(column)} if column.dtype == np.int64 else None


def unpack(kind: Any, tree: Any, arrays: Mapping[str, Any]) -> Any:
    """The inverse of `pack`, for a value of type `kind`."""
    kind = _alternative(kind, tree)
    build: Any = get_origin(kind) or kind
    args = get_args(kind)
    if isinstance(tree, dict) and "type" not in tree:
        return _from_arrays(build, tree, arrays)
    if is_dataclass(build):
        make: Any = build
        hints = _hints(make)
        return make(**{n: unpack(hints[n], v, arrays) for n, v in tree.items() if n != "type"})
    if build is dict:
        return {key: unpack(args[1], v, arrays) for key, v in tree}
    if build is list or (build is tuple and args[-1] is Ellipsis):
        return build(unpack(args[0], v, arrays) for v in tree)
    if build is tuple:
        return tuple(unpack(k, v, arrays) for k, v in zip(args, tree, strict=True))
    return tree


def _from_arrays(build: Any, tree: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """An array, or whole numbers or a mapping of them that were written as arrays."""
    if "array" in tree:
        return arrays[tree["array"]]
    if "column" in tree:
        return build(arrays[tree["column"]].tolist())
    keys, values = (_from_arrays(list, tree[part], arrays) for part in ("keys", "values"))
    return dict(zip(keys, values, strict=True))


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _alternative(kind: Any, tree: Any) -> Any:
    """Of a union, the dataclass that was packed; scalars need no choice."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    name = tree.get("type") if isinstance(tree, dict) else None
    return next((k for k in get_args(kind) if getattr(k, "__name__", "") == name), type(tree))


def nbytes(state: Any) -> int:
    """What the arrays of a state take in memory, each once.

    >>> vector = np.zeros(10, np.float32)
    >>> nbytes({"model": vector, "the same": vector, "sum": np.zeros(10)})
    120
    """
    arrays = Arrays()
    pack(state, arrays)
    return sum(array.nbytes for array in arrays.values())


def can_be_saved(state: Any) -> bool:
    """Whether a user's own state is made of what this can write and read back."""
    try:
        arrays, again = Arrays(), Arrays()
        tree = json.loads(json.dumps(pack(state, arrays)))
        restored = unpack(type(state), tree, arrays)
        return bool(json.loads(json.dumps(pack(restored, again))) == tree)
    except (TypeError, ValueError, KeyError, NameError, AttributeError):
        return False
