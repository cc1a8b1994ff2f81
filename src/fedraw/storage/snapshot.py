"""Saves any state as arrays in a safetensors file and everything else as JSON, without pickle.

The type hints of a state say how to read it back, so a strategy needs no code for this. An array
that occurs several times is stored once, and shared again after reading. The module also reads
and writes model files.
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
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.storage.files import atomic_file

# The names of model files in the folders of runs and servers. Constants are the tensors of a
# server's model that training does not change.
MODEL, CALIBRATED = "model.safetensors", "calibrated.safetensors"
BEST, CONSTANTS = "best.safetensors", "constants.safetensors"

# At least this many whole numbers are stored as an array, and fewer as JSON.
_MANY = 256

T = TypeVar("T")
Array = np.ndarray[Any, Any]


class Arrays(dict[str, Array]):
    """Arrays by name; the same array always has the same name.

    `external` maps the ids of arrays in other files to their names; these arrays are not stored
    here. An id is valid only as long as its array exists, so the caller must keep the arrays.
    """

    def __init__(self, external: Mapping[int, str] = {}) -> None:
        super().__init__()
        wrong = next((name for name in external.values() if name.isdecimal()), None)
        if wrong is not None:
            raise ValueError(f"an external array cannot be named {wrong!r}, which is a number")
        self._external = external
        self._name_of: dict[int, str] = {}

    def add(self, array: Array) -> str:
        """Add an array unless it was added before; return its name."""
        elsewhere = self._external.get(id(array))
        if elsewhere is not None:
            return elsewhere
        name = self._name_of.setdefault(id(array), str(len(self)))
        self.setdefault(name, array)
        return name


def save(value: Any, folder: Path, external: Mapping[int, str] = {}) -> None:
    """Write `state.json` and `state.safetensors` into the folder; for `external`, see `Arrays`."""
    arrays = Arrays(external)
    tree = pack(value, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    # `ascontiguousarray` would turn a scalar into an array of length one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_tensors(contiguous, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")


def write_tensors(
    tensors: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; raise OSError on a full disk, as for every other file.

    The file has the permissions of the umask, like every other file; safetensors itself creates
    files that only their owner can read.
    """
    path.unlink(missing_ok=True)
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path, dict(metadata) if metadata else None)
    except SafetensorError as problem:
        raise OSError(errno.EIO, str(problem), str(path)) from None
    path.chmod(mode)


def write_model(model: Vector, layout: Layout, path: Path) -> None:
    """Write a model's vector as a safetensors file with named tensors, atomically."""
    tensors = [(segment.name, segment.shape, "float32") for segment in layout.segments]
    with atomic_file(path) as draft:
        write_tensors(named_tensors(model, tensors), draft)


def read_tensors(path: Path) -> dict[str, Array]:
    """Read the tensors of a model file; one that cannot be read is a BadInput."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as problem:
        raise BadInput(f"cannot read {path}: {problem}; restore it from a copy") from None


class BestFacts(NamedTuple):
    """What a server writes into the header of its best model."""

    metric: str
    value: float
    event: int
    version: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]

    @classmethod
    def read(cls, path: Path) -> BestFacts | None:
        """Read the facts of a best model; None if there is no such file of this version."""
        try:
            with safe_open(path, "numpy") as file:
                facts = json.loads(file.metadata()["fedraw"])
            return cls(
                str(facts["metric"]),
                float(facts["value"]),
                int(facts["event"]),
                int(facts["version"]),
                dict(facts["metrics"]),
                dict(facts["recall"]),
            )
        except (OSError, SafetensorError, ValueError, LookupError, TypeError):
            return None

    def header(self) -> dict[str, str]:
        """Return the header of the file."""
        return {"fedraw": json.dumps(self._asdict())}


def named_tensors(model: Vector, tensors: Iterable[Sequence[Any]]) -> dict[str, Array]:
    """Return the tensors of a model's vector, in the user's types.

    Args:
        model: The flat vector of all parameters and statistics.
        tensors: For each tensor, in the order of the vector: its name, shape and type; further
            items are ignored.

    >>> named_tensors(np.ones(3, np.float32), [("w", (2,), "float32"), ("b", [1], "float16")])
    {'w': array([1., 1.], dtype=float32), 'b': array([1.], dtype=float16)}

    """
    named, start = {}, 0
    for name, shape, dtype, *_ in tensors:
        end = start + math.prod(shape)
        named[str(name)] = np.ascontiguousarray(model[start:end].reshape(shape), dtype)
        start = end
    return named


def load(kind: type[T], folder: Path, external: Mapping[str, Array] = {}) -> T:
    """Read a value of type `kind` that `save` has written, bit for bit.

    `external` has the arrays that are stored elsewhere, by name. A KeyError names a missing array.
    """
    tree, arrays = read(folder)
    restored: T = unpack(kind, tree, {**arrays, **external})
    return restored


def read(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the JSON tree and the arrays that `save` has written, without unpacking them."""
    arrays = load_file(folder / "state.safetensors")
    return json.loads((folder / "state.json").read_text(encoding="utf-8")), arrays


def pack(value: Any, arrays: Arrays) -> Any:
    """Return the value as JSON, in which an array becomes {"array": its name in `arrays`}.

    A long list of whole numbers becomes {"column": name}, and a mapping of them {"keys": …,
    "values": …}.
    """
    if isinstance(value, np.ndarray):
        return {"array": arrays.add(value)}
    if is_dataclass(value):
        kept = {f.name: pack(getattr(value, f.name), arrays) for f in fields(value) if f.init}
        return {"type": type(value).__name__, **kept}
    if isinstance(value, Mapping):
        values = _column(list(value.values()), arrays)
        keys = None if values is None else _column(list(value), arrays)
        if keys is not None:
            return {"keys": keys, "values": values}
        # Pairs, because a key in JSON is always a string.
        return [[pack(key, arrays), pack(v, arrays)] for key, v in value.items()]
    if isinstance(value, list | tuple):
        column = _column(value, arrays)
        return column or [pack(v, arrays) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _column(values: Sequence[Any], arrays: Arrays) -> dict[str, str] | None:
    """Store a long list of whole numbers as an array; return None for any other list."""
    if len(values) < _MANY or set(map(type, values)) != {int}:
        return None
    column = np.array(values)
    return {"column": arrays.add(column)} if column.dtype == np.int64 else None


def unpack(kind: Any, tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value of type `kind` that `pack` has turned into `tree` and `arrays`.

    A type that does not say what it contains, such as a bare `list`, is a ValueError.
    """
    kind = _alternative(kind, tree)
    build = _build(kind)
    if isinstance(tree, dict) and "type" not in tree:
        return _from_arrays(build, tree, arrays)
    if is_dataclass(build):
        make: Any = build
        hints = _type_hints(make)
        return make(**{n: unpack(hints[n], v, arrays) for n, v in tree.items() if n != "type"})
    if isinstance(tree, dict):
        raise ValueError(f"a {tree['type']} cannot be read back as {kind}; write its type out")
    if _is_named_tuple(build):
        hints = _type_hints(build)
        named = zip(build._fields, tree, strict=True)
        return build(*(unpack(hints[name], v, arrays) for name, v in named))
    return _contents(build, get_args(kind), tree, arrays) if build in _CONTAINERS else tree


def _contents(build: Any, args: tuple[Any, ...], tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return a list, tuple or dictionary of values of the types in `args`."""
    if not args:
        raise ValueError(f"the type {build.__name__} does not say what it contains; {_REMEDY}")
    if build is dict:
        return {key: unpack(args[1], v, arrays) for key, v in tree}
    if build is list or (build is tuple and args[-1] is Ellipsis):
        return build(unpack(args[0], v, arrays) for v in tree)
    return tuple(unpack(k, v, arrays) for k, v in zip(args, tree, strict=True))


_CONTAINERS = (list, tuple, dict)
_CONCRETE: Mapping[Any, Any] = {Sequence: list, Mapping: dict}
_REMEDY = "write for example list[float]"


def _build(kind: Any) -> Any:
    """Return the class of which a value of type `kind` is built."""
    build: Any = get_origin(kind) or kind
    return _CONCRETE.get(build, build) if isinstance(build, type) else build


def _is_named_tuple(build: Any) -> bool:
    return isinstance(build, type) and issubclass(build, tuple) and hasattr(build, "_fields")


def _from_arrays(build: Any, tree: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return an array, or a list or mapping of whole numbers that was stored as arrays."""
    if "array" in tree:
        return arrays[tree["array"]]
    if "column" in tree:
        values = arrays[tree["column"]].tolist()
        return tuple(values) if build is tuple else values
    keys, values = (_from_arrays(list, tree[part], arrays) for part in ("keys", "values"))
    return dict(zip(keys, values, strict=True))


@lru_cache(maxsize=256)
def _type_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    for name, hint in hints.items():
        if _build(hint) in _CONTAINERS and not get_args(hint):
            raise ValueError(
                f"{kind.__name__}.{name} has the type {hint.__name__}, which does not say what it "
                f"contains; {_REMEDY}"
            )
    return hints


def _alternative(kind: Any, tree: Any) -> Any:
    """Return the member of a union type that was packed; any other type is returned unchanged."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    members = get_args(kind)
    if isinstance(tree, list) or (isinstance(tree, dict) and not {"array", "type"} & tree.keys()):
        fitting = (k for k in members if _build(k) in _CONTAINERS or _is_named_tuple(_build(k)))
        return next(fitting, type(tree))
    name = tree.get("type") if isinstance(tree, dict) else None
    return next((k for k in members if getattr(k, "__name__", "") == name), type(tree))


def nbytes(state: Any) -> int:
    """Return the bytes that the arrays of a state take in memory; each array counts once.

    >>> vector = np.zeros(10, np.float32)
    >>> nbytes({"model": vector, "the same": vector, "sum": np.zeros(10)})
    120
    """
    arrays = Arrays()
    pack(state, arrays)
    return sum(array.nbytes for array in arrays.values())


def can_be_saved(state: Any) -> bool:
    """Return whether a state of a user's strategy can be saved and read back."""
    return saving_problem(state) is None


def saving_problem(state: Any) -> str | None:
    """Return why a state of a user's strategy cannot be saved and read back; None if it can."""
    try:
        arrays, again = Arrays(), Arrays()
        tree = json.loads(json.dumps(pack(state, arrays)))
        restored = unpack(type(state), tree, arrays)
        same = json.loads(json.dumps(pack(restored, again))) == tree
    except (TypeError, ValueError, KeyError, IndexError, NameError, AttributeError) as problem:
        return str(problem)
    return None if same else f"{type(state).__name__} is read back with other values"
