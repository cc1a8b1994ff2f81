"""What a row of a table is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.experiments.sections import StrategySpec
from fedraw.strategies.catalog import BY_NAME
from fedraw.strategies.strategy import Strategy


def row_name(spec: StrategySpec, strategy: Strategy[Any] | None = None) -> str:
    """The strategy's name; FedRAW's two ablations have their own.

    >>> row_name(StrategySpec("fedraw", {"weighting": "uniform"}))
    'fedraw-dedup-only'
    """
    if strategy is not None and not isinstance(strategy, BY_NAME[spec.name]):
        return type(strategy).__name__.lower()  # the user's own
    if spec.name != "fedraw":
        return spec.name
    dedup = spec.settings.get("dedup", True)
    rarity = spec.settings.get("weighting", "rarity") == "rarity"
    if dedup:
        return "fedraw" if rarity else "fedraw-dedup-only"
    return "fedraw-weight-only" if rarity else "fedraw-neither"


def distinct_names(names: Sequence[str], specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append to names that are not unique the keys in which their specs differ.

    >>> specs = [{"strategy": {"buffer": 5}}, {"strategy": {"buffer": 10}}]
    >>> distinct_names(["fedraw", "fedraw"], specs)
    ['fedraw buffer=5', 'fedraw buffer=10']
    """
    flat = [_flat(spec) for spec in specs]
    result = []
    for name, own in zip(names, flat, strict=True):
        alike = [other for other_name, other in zip(names, flat, strict=True) if other_name == name]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        short = [f"{key.removeprefix('strategy.')}={_shown(own.get(key))}" for key in differing]
        result.append(" ".join([name, *short]))
    return result


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name: table for name, table in spec.items() if isinstance(table, Mapping)}
    return {
        f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()
    }


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
