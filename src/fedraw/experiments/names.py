"""What a row of a table is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.experiments.sections import StrategySpec
from fedraw.experiments.toml import flat
from fedraw.strategies.catalog import method_name, name_of, settings_of
from fedraw.strategies.protocol import Strategy


def row_name(spec: StrategySpec, strategy: Strategy[Any] | None = None) -> str:
    """What tables call the strategy that a spec names, or one that is given instead.

    >>> row_name(StrategySpec("fedraw", {"weighting": "uniform"}))
    'fedraw-dedup-only'
    """
    if strategy is None:
        return method_name(spec.name, spec.settings)
    return method_name(name_of(strategy), settings_of(strategy))


def distinct_names(names: Sequence[str], specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append to names that are not unique the keys in which their specs differ.

    >>> specs = [{"strategy": {"buffer": 5}}, {"strategy": {"buffer": 10}}]
    >>> distinct_names(["fedraw", "fedraw"], specs)
    ['fedraw buffer=5', 'fedraw buffer=10']
    """
    settings = [flat(spec) for spec in specs]
    result = []
    for name, own in zip(names, settings, strict=True):
        alike = [
            other for other_name, other in zip(names, settings, strict=True) if other_name == name
        ]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        short = [f"{key.removeprefix('strategy.')}={_shown(own.get(key))}" for key in differing]
        result.append(" ".join([name, *short]))
    return result


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
