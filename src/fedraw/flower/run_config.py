"""Settings and strategy from a Flower run config: `fedraw.<key>` and `fedraw.strategy.<key>`.

A run config holds only texts, numbers and truth values, and a run can override only keys that the
app's pyproject.toml lists. So a list is a text with commas, and an empty text means "not set". Keys
may be written with hyphens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_origin

from fedraw.core.settings import alternatives, checked_settings, type_hints
from fedraw.server.settings import Settings
from fedraw.strategies.catalog import find_method

SECTION = "fedraw"
STRATEGY = "strategy."
DEFAULT_STRATEGY = "fedraw"


def read_server_settings(
    run_config: Mapping[str, Any], given: Settings | Mapping[str, Any] | None = None
) -> Settings:
    """Return the app's settings, overridden by those of the run config.

    >>> read_server_settings({"fedraw.min-clients": 4, "lr": 0.1}, {"arrivals": 100}).min_clients
    4
    """
    if isinstance(given, Settings):
        base = {field.name: getattr(given, field.name) for field in fields(given)}
    else:
        base = _read(Settings, _underscored(given or {}), "settings")
    own = {k: v for k, v in _section(run_config).items() if not k.startswith(STRATEGY)}
    return Settings(**{**base, **_read(Settings, own, SECTION)})


def read_strategy(run_config: Mapping[str, Any]) -> Any:
    """Return the strategy that the run config names, with its settings.

    >>> read_strategy({"fedraw.strategy.name": "fedfa", "fedraw.strategy.buffer": 4})
    FedFa(buffer=4)
    """
    table = strategy_table(run_config)
    name = table.pop("name", DEFAULT_STRATEGY)
    method = find_method(name, f"{SECTION}.{STRATEGY}name")
    return method.make(_read(method.factory, table, f"{SECTION}.strategy"))


def strategy_table(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys below `fedraw.strategy`, without that prefix."""
    own = _section(run_config)
    return {k.removeprefix(STRATEGY): v for k, v in own.items() if k.startswith(STRATEGY)}


def _section(run_config: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{SECTION}."
    own = {k.removeprefix(prefix): v for k, v in run_config.items() if k.startswith(prefix)}
    return {key: value for key, value in _underscored(own).items() if value != ""}


def _underscored(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _read(kind: Any, table: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Check the values, after splitting texts where the dataclass has a list."""
    hints = type_hints(kind)

    def is_list(key: str) -> bool:
        return any(get_origin(kind) is tuple for kind in alternatives(hints.get(key)))

    split = {key: _names(value) if is_list(key) else value for key, value in table.items()}
    return checked_settings(kind, split, section)


def _names(value: Any) -> tuple[str, ...]:
    """Names from "north, south", from a list, or from a single number."""
    parts = value if isinstance(value, list | tuple | set | frozenset) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())
