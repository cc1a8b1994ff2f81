"""Settings and strategy from Flower's run config: `fedraw.<key>` and `fedraw.strategy.<key>`.

Flower's config has texts, numbers and truth values only, and a run can override only what the app's
pyproject.toml lists. So a list is a text with commas, and an empty text stands for "not set".
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedraw.errors import BadInput, nearest
from fedraw.server.settings import Settings
from fedraw.strategies.catalog import find_method

PREFIX = "fedraw."
STRATEGY = "strategy."
DEFAULT_STRATEGY = "fedraw"


def read_settings(
    run_config: Mapping[str, Any], given: Settings | Mapping[str, Any] | None = None
) -> Settings:
    """The app's own settings, overridden by those of the run.

    >>> read_settings({"fedraw.min-clients": 4, "lr": 0.1}, {"arrivals": 100}).min_clients
    4
    """
    if isinstance(given, Settings):
        base = {field.name: getattr(given, field.name) for field in fields(given)}
    else:
        base = _checked(Settings, _plain(given or {}), "settings: ")
    ours = {k: v for k, v in _ours(run_config).items() if not k.startswith(STRATEGY)}
    return Settings.of({**base, **_checked(Settings, ours, PREFIX)})


def read_strategy(run_config: Mapping[str, Any]) -> Any:
    """The strategy a run names, with its settings.

    >>> read_strategy({"fedraw.strategy.name": "fedfa", "fedraw.strategy.buffer": 4})
    FedFa(buffer=4)
    """
    table = strategy_table(run_config)
    name = table.pop("name", DEFAULT_STRATEGY)
    method = find_method(name, f"{PREFIX}{STRATEGY}name")
    return method.make(_checked(method.factory, table, PREFIX + STRATEGY))


def strategy_table(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says about its strategy."""
    ours = _ours(run_config)
    return {k.removeprefix(STRATEGY): v for k, v in ours.items() if k.startswith(STRATEGY)}


def _ours(run_config: Mapping[str, Any]) -> dict[str, Any]:
    ours = {k.removeprefix(PREFIX): v for k, v in run_config.items() if k.startswith(PREFIX)}
    return {key: value for key, value in _plain(ours).items() if value != ""}


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _checked(kind: type[Any], table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values in the types of the dataclass's fields."""
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for key in table:
        if key not in known:
            raise BadInput(f"{prefix}{key} is no setting; {nearest(key, known)}")
    return {key: _convert(hints[key], value, prefix + key) for key, value in table.items()}


def _convert(kind: Any, value: Any, key: str) -> Any:
    for alternative in _alternatives(kind):
        if get_origin(alternative) is tuple:
            return _names(value)
        if alternative is Path and isinstance(value, str | Path):
            return Path(value)
        if get_origin(alternative) is Literal and value in get_args(alternative):
            return value
        if alternative is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(alternative, type) and type(value) is alternative:
            return value
    raise BadInput(f"{key} = {value!r} must be {_words(kind)}")


def _names(value: Any) -> tuple[str, ...]:
    """Names from "north, south", from a list, or a single number."""
    parts = value if isinstance(value, list | tuple | set | frozenset) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _words(kind: Any) -> str:
    named = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    words = []
    for alternative in _alternatives(kind):
        if get_origin(alternative) is Literal:
            words += [repr(choice) for choice in get_args(alternative)]
        elif alternative is not type(None):
            words.append(named.get(alternative, "a text"))
    return " or ".join(words)
