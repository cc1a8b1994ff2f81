"""Reads a table of settings into a frozen dataclass, and checks single values.

Specs, Flower run configs and keyword arguments all go through this module, so the same mistake gets
the same message everywhere.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedraw.core.removed import is_neutral, removal
from fedraw.errors import BadInput, nearest

T = TypeVar("T")

# Evaluating annotations takes most of the time of reading a spec.
type_hints = cache(get_type_hints)

# A TOML integer has 64 bits.
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def read_settings(kind: type[T], table: object, section: str) -> T:
    """Return the dataclass `kind` filled from the table.

    Args:
        kind: A dataclass, whose type hints say what each key may hold.
        table: The settings by name; keys that are absent keep their defaults.
        section: The name of the table in messages.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Training:
    ...     lr: float = 0.1
    >>> read_settings(Training, {"lr": 1}, "training")
    Training(lr=1.0)
    >>> read_settings(Training, {"lrr": 1}, "training")
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: [training] has the unknown key 'lrr'; did you mean 'lr'?

    """
    checked: dict[str, Any] = checked_settings(kind, table, section)
    return kind(**checked)


def checked_settings(
    kind: Any,
    table: object,
    section: str,
    hidden: tuple[str, ...] = (),
    other_keys: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the table's values in the types of the dataclass's fields.

    A removed setting with a value under which it did nothing is left out. A field named in `hidden`
    counts as an unknown key. `other_keys` are keys of the section that
    the caller has already read; a message about a misspelt key may suggest them.
    """
    if not isinstance(table, Mapping):
        raise BadInput(f"[{section}] must be a table of settings, got {table!r}")
    hints = type_hints(kind)
    known = {field.name: field for field in fields(kind) if field.name not in hidden}
    table = {k: v for k, v in table.items() if k in known or not is_neutral(f"{section}.{k}", v)}
    for key in table:
        if key not in known:
            choices = [*other_keys, *known]
            unknown = f"[{section}] has the unknown key {key!r}; {nearest(key, choices)}"
            raise BadInput(removal(f"{section}.{key}") or unknown)
    for name, field in known.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if name not in table and not optional:
            raise BadInput(f"[{section}] lacks the key {name!r}, which has no default")
    return {key: _convert(hints[key], value, f"{section}.{key}") for key, value in table.items()}


def _convert(kind: Any, value: object, key: str) -> Any:
    for alternative in alternatives(kind):
        if _fits(alternative, value):
            if get_origin(alternative) is tuple:
                return tuple(value)  # type: ignore[arg-type]
            if alternative in (float, Path):
                return alternative(value)
            return value
    wrong = f"{key} = {shown(value)} must be {_describe(kind)}{_too_large(value)}"
    raise BadInput(removal(key, value) or wrong)


def shown(value: object, longest: int = 60) -> str:
    """Return the repr of a value for a message, truncated if it is very long.

    >>> shown("abc", longest=5), shown(10**99, longest=8)
    ("'abc'", '10000000…')
    """
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _too_large(value: object) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    large = any(isinstance(v, int) and not _SMALLEST <= v <= _LARGEST for v in values)
    return ", and a whole number has at most 64 bits" if large else ""


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(kind: Any, value: object) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        element = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(
            any(_fits(k, v) for k in alternatives(element)) for v in value
        )
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    kind = Mapping if origin is Mapping else kind
    return isinstance(kind, type) and isinstance(value, str | Path if kind is Path else kind)


def _describe(kind: Any) -> str:
    named = {
        int: "a whole number",
        float: "a finite number",
        str: "a text",
        Path: "a text",
        bool: "true or false",
    }
    words = []
    for alternative in alternatives(kind):
        if get_origin(alternative) is Literal:
            words += [repr(choice) for choice in get_args(alternative)]
        elif get_origin(alternative) is tuple:
            words.append(f"a list, each {_describe(get_args(alternative)[0])}")
        elif get_origin(alternative) is Mapping:
            words.append("a table")
        elif alternative in named:
            words.append(named[alternative])
    return " or ".join(words)


def positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite.

    >>> positive("lr", -0.1)
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: lr = -0.1 must be a positive number
    """
    if not 0 < value < math.inf:
        raise BadInput(f"{name} = {value} must be a positive number")


def whole(name: str, value: int) -> None:
    """Refuse anything but an integer of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} = {value!r} must be a whole number, at least 1")


def between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside the closed interval from `least` to `most`."""
    if not least <= value <= most:
        raise BadInput(f"{name} = {value} must be from {least:g} to {most:g}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a number below `least`, and one that is not finite."""
    if not least <= value < math.inf:
        raise BadInput(f"{name} = {value} must be at least {least:g} and finite")


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in known:
        raise BadInput(f"{name} = {value!r} is unknown; known: {', '.join(known)}")


def refuse_unused(settings: object, name: str, cause: str) -> None:
    """Refuse a setting that differs from its default although `cause` leaves it without effect.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Discount:
    ...     exponent: float = 0.5
    >>> refuse_unused(Discount(exponent=2.0), "exponent", "staleness = 'none'")
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: exponent = 2.0 has no effect with staleness = 'none'; leave one out
    """
    value = getattr(settings, name)
    if value != getattr(type(settings), name):
        raise BadInput(f"{name} = {value!r} has no effect with {cause}; leave one out")
