"""Reads a table of settings into a frozen dataclass, with errors that name the key."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedraw.errors import BadInput, nearest

T = TypeVar("T")

# Evaluating annotations takes most of the time of reading a spec.
type_hints = cache(get_type_hints)

# A TOML integer has 64 bits.
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def read_settings(kind: type[T], table: object, section: str) -> T:
    """The dataclass `kind` filled from a section of a spec."""
    checked: dict[str, Any] = checked_settings(kind, table, section)
    return kind(**checked)


def checked_settings(
    kind: Any, table: object, section: str, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The section's values in the types of the dataclass's fields; `hidden` ones are no keys."""
    if not isinstance(table, Mapping):
        raise BadInput(f"[{section}] must be a table of settings, got {table!r}")
    hints = type_hints(kind)
    known = {field.name: field for field in fields(kind) if field.name not in hidden}
    for key in table:
        if key not in known:
            raise BadInput(f"[{section}] has the unknown key {key!r}; {nearest(key, known)}")
    for name, field in known.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if name not in table and not optional:
            raise BadInput(f"[{section}] lacks the key {name!r}, which has no default")
    return {key: _convert(hints[key], value, f"{section}.{key}") for key, value in table.items()}


def _convert(kind: Any, value: object, key: str) -> Any:
    for alternative in _alternatives(kind):
        if _fits(alternative, value):
            if get_origin(alternative) is tuple:
                return tuple(value)  # type: ignore[arg-type]
            return float(value) if alternative is float else value  # type: ignore[arg-type]
    raise BadInput(f"{key} = {shown(value)} must be {_describe(kind)}{_too_large(value)}")


def shown(value: object, longest: int = 60) -> str:
    """A value as a message quotes it; of a very long one, its beginning.

    >>> shown("abc"), shown(10**99, longest=8)
    ("'abc'", '10000000…')
    """
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _too_large(value: object) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    large = any(isinstance(v, int) and not _SMALLEST <= v <= _LARGEST for v in values)
    return ", and a whole number has at most 64 bits" if large else ""


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(kind: Any, value: object) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        element = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(
            any(_fits(k, v) for k in _alternatives(element)) for v in value
        )
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(kind, type) and isinstance(value, kind)


def _describe(kind: Any) -> str:
    named = {
        int: "a whole number",
        float: "a finite number",
        str: "a text",
        bool: "true or false",
    }
    words = []
    for alternative in _alternatives(kind):
        if get_origin(alternative) is Literal:
            words += [repr(choice) for choice in get_args(alternative)]
        elif get_origin(alternative) is tuple:
            words.append(f"a list, each {_describe(get_args(alternative)[0])}")
        elif alternative in named:
            words.append(named[alternative])
    return " or ".join(words)
