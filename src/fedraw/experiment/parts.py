"""The user's own Python objects that replace names in a spec, and how a run records them."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import textwrap
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.core.settings import shown
from fedraw.errors import BadInput
from fedraw.experiment.sections import is_plugin
from fedraw.strategies.protocol import Strategy

if TYPE_CHECKING:
    from fedraw.experiment.clients import PartitionFunction
    from fedraw.experiment.spec import Spec
    from fedraw.learning.models import ModelFactory


# The types that a digest includes by value.
_VALUES = (
    str, bytes, int, float, np.generic, np.ndarray,
    list, tuple, set, frozenset, Mapping,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Parts:
    """The user's own Python objects that replace names in a spec."""

    data: Any = None
    partition: PartitionFunction | None = None
    model: ModelFactory | None = None
    strategy: Strategy[Any] | None = None
    train: Callable[..., Any] | None = None
    test: Any = None
    speeds: Any = None
    features: Any = None  # a torch module, a function of a batch, or a FeatureMap
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the given parts: those of their functions and classes."""
        given = ("partition", "speeds")  # unless they are functions
        return {
            key: "given" if key in given and not callable(value) else _name(value)
            for key, value in self.brought()
        }

    @cached_property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of the source of each part that is code.

        Data, including the test set, have their own fingerprint in the log. The digests are
        computed once, in the process that created the parts: a worker may not have their source.
        """
        return {key: digest(value) for key, value in self.brought() if key not in ("data", "test")}

    def brought(self) -> list[tuple[str, Any]]:
        """Return the given parts and the names of their fields."""
        values = [(own.name, getattr(self, own.name)) for own in fields(self)]
        empty = [key for key, value in values if isinstance(value, Mapping) and not value]
        return [(key, value) for key, value in values if value is not None and key not in empty]


NO_PARTS = Parts()


def with_plugins(spec: Spec, parts: Parts) -> Parts:
    """Return the parts together with those that the spec names in its plugins."""
    named: dict[str, Any] = {}
    for part, (key, name) in spec.plugin_parts.items():
        if getattr(parts, part) is None:
            found = spec.plugin_modules.find(name, key)
            if part == "data":
                found = _called(found, key, name)
            named[part] = model_factory(found) if part == "model" else _callable(found, key, name)
    if is_plugin(spec.strategy.name) and parts.strategy is None:
        named["strategy"] = spec.make_strategy()
    return replace(parts, **named) if named else parts


def _called(found: Any, key: str, name: str) -> Any:
    try:
        return found() if callable(found) else found
    except TypeError as problem:
        raise BadInput(
            f"{key} = {name!r} must be data, or a function without arguments that returns data: "
            f"{problem}"
        ) from None


def _callable(found: Any, key: str, name: str) -> Any:
    if key != "data.name" and not callable(found):
        raise BadInput(f"{key} = {name!r} is {shown(found)}; name a function")
    return found


def model_factory(model: Any) -> ModelFactory:
    """Turn the user's model into a function of the input shape and the number of classes.

    Args:
        model: A torch module, whose weights every seed starts from; a function or class without
            required arguments; or a function of the input shape and the number of classes.

    """
    if _is_module(model):
        return _ModelOf(model)
    if not callable(model):
        raise BadInput(
            f"model = {shown(model)} is not a model; give the name of one, a torch module, or a "
            "function that returns one"
        )
    required = _required_arguments(model)
    if required == 2:
        factory: ModelFactory = model
        return factory
    if required == 0:
        return _ModelOf(model)
    raise BadInput(
        f"model = {_name(model)} needs {required} arguments; give a function without arguments, or "
        "one of two: the shape of a sample and the number of classes"
    )


class _ModelOf:
    """Makes models from a module, by copying it, or from a function without arguments."""

    def __init__(self, source: Any) -> None:
        self.source = source
        named = type(source) if _is_module(source) else source
        self.__name__ = getattr(named, "__name__", type(named).__name__)
        self.__qualname__ = getattr(named, "__qualname__", self.__name__)
        self.__module__ = getattr(named, "__module__", __name__)

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> Any:
        return copy.deepcopy(self.source) if _is_module(self.source) else self.source()


def _is_module(thing: Any) -> bool:
    """Return whether this is a torch module, without importing torch."""
    return hasattr(thing, "named_parameters") and not isinstance(thing, type)


def _required_arguments(function: Callable[..., Any]) -> int:
    """Return the number of required arguments; it is two for a function of any number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    any_number = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return 2 if any_number and not required else len(required)


def _name(thing: Any) -> str:
    """Return the name of a part in tables: that of its function or class, in lower case."""
    if isinstance(thing, Mapping):
        return ", ".join(map(str, thing))
    if isinstance(thing, functools.partial):
        return _name(thing.func)
    return str(getattr(thing, "__name__", type(thing).__name__)).lower()


def digest(thing: Any) -> str:
    """Return the SHA-256 of the source of a part.

    The source of a function or class is its own text, without the functions that it calls. The
    digest of a torch module includes its weights. Numbers, strings, arrays, tensors and containers
    of them are included by value.
    """
    content = hashlib.sha256()
    for item in _pairs(thing) if isinstance(thing, Mapping) else [thing]:  # metrics by name
        _add(content, item)
    return content.hexdigest()


# The ids of the objects that contain an object, so that none is added within itself.
_Outer = tuple[int, ...]


def _add(content: Any, thing: Any, outer: _Outer = ()) -> None:
    if id(thing) in outer:
        return
    match thing:
        case _ModelOf():
            _add(content, thing.source, outer)
        case functools.partial():
            for item in (thing.func, *thing.args, *_pairs(thing.keywords)):
                _add(content, item, outer)
        case np.ndarray():
            content.update(f"{thing.dtype} {thing.shape}".encode())
            content.update(np.ascontiguousarray(thing).tobytes())
        case None | str() | bytes() | int() | float():
            content.update(repr(thing).encode())
        case np.generic():
            content.update(repr(thing.item()).encode())
        case list() | tuple() | set() | frozenset() | Mapping():
            _add_container(content, thing, (*outer, id(thing)))
        case _ if _is_tensor(thing):
            _add(content, _values_of(thing))
        case _:
            _add_code(content, thing, (*outer, id(thing)))


def _add_container(content: Any, thing: Any, outer: _Outer) -> None:
    """Add the items of a container one by one, so that [1, 23] differs from [12, 3]."""
    items = _pairs(thing) if isinstance(thing, Mapping) else list(thing)
    digests = []
    for item in items:
        own = hashlib.sha256()
        _add(own, item, outer)
        digests.append(own.digest())
    if isinstance(thing, set | frozenset):  # the order of its items varies by process
        digests.sort()
    content.update(f"{len(digests)} items".encode() + b"".join(digests))


def _add_code(content: Any, thing: Any, outer: _Outer) -> None:
    """Add a function, a class, or an object of the user's class."""
    if _is_module(thing):
        content.update(repr(thing).encode() + _source_of_class(thing).encode())
        for name, value in thing.state_dict().items():
            _add(content, name)
            _add(content, _values_of(value))
    elif inspect.isroutine(thing) or isinstance(thing, type):
        content.update(_source(thing).encode())
        _add_variables(content, _closure(thing), outer)
    else:
        content.update(_source_of_class(thing).encode())
        _add_variables(content, getattr(thing, "__dict__", {}), outer)


def _add_variables(content: Any, variables: Mapping[str, Any], outer: _Outer) -> None:
    """Add the variables that a digest includes by value, in the order of their names."""
    for name, value in sorted(variables.items()):
        if isinstance(value, _VALUES) or _is_tensor(value) or _is_module(value):
            _add(content, name)
            _add(content, value, outer)


def _pairs(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys and values of a mapping in one list."""
    return [item for pair in mapping.items() for item in pair]


def _is_tensor(thing: Any) -> bool:
    """Return whether this is a torch tensor, without importing torch."""
    return hasattr(thing, "detach") and hasattr(thing, "is_sparse") and not isinstance(thing, type)


def _values_of(tensor: Any) -> Any:
    """Return a tensor as an array; numbers of a type that NumPy lacks become float32."""
    dense = tensor.detach().cpu().to_dense()
    try:
        return dense.numpy()
    except TypeError:
        return dense.float().numpy()


def _closure(function: Any) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))
    # A variable without a value has an empty cell, whose content cannot be read.
    return {name: getattr(cell, "cell_contents", None) for name, cell in cells.items()}


def _source(thing: Any) -> str:
    """Return the source text of a function or class; without one, its compiled code."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # the file may not be Python
        if isinstance(thing, type):
            own = sorted(vars(thing).items())
            return repr([(name, _source(v)) for name, v in own if inspect.isroutine(v)])
        code = getattr(inspect.unwrap(thing), "__code__", None)
        return repr(_compiled(code)) if code is not None else _name(thing)


def _source_of_class(thing: object) -> str:
    """Return the source text of an object's class; many objects may have the same class."""
    kind: Any = type(thing)
    return _cached_source(kind)


@functools.lru_cache(maxsize=256)
def _cached_source(kind: Any) -> str:
    return _source(kind)


def _compiled(code: CodeType) -> Sequence[Any]:
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_name, code.co_code.hex(), constants, code.co_names, code.co_varnames]
