"""The methods by name: the only place that lists them, and what logs and tables call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedraw.core.layout import Layout
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay

BY_NAME: dict[str, Any] = {
    "fedavg": FedAvg,
    "qfedavg": QFedAvg,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "fedfa": FedFa,
    "ca2fl": CA2FL,
    "fedraw": FedRAW,
    "fedraw-replay": Replay,
}


def name_of(strategy: Strategy[Any]) -> str:
    """The name of a strategy in the table above; of a user's own, that of its class."""
    known = {kind: name for name, kind in BY_NAME.items()}
    return known.get(type(strategy), type(strategy).__name__.lower())


def settings_of(strategy: Strategy[Any]) -> dict[str, Any]:
    """The settings by which a strategy is recorded.

    The model's layout is not a setting, and settings without a value are left out.

    >>> settings_of(FedFa(buffer=4))
    {'buffer': 4}
    """
    if not is_dataclass(strategy) or isinstance(strategy, type):
        return {}
    values = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    return {
        name: value
        for name, value in values.items()
        if not (value is None or isinstance(value, Layout))
    }


def method_name(name: str, settings: Mapping[str, Any]) -> str:
    """What tables and logs call a method: FedRAW's ablations have names of their own.

    >>> method_name("fedraw", {"weighting": "uniform"})
    'fedraw-dedup-only'
    """
    if name != "fedraw":
        return name
    rarity = settings.get("weighting", "rarity") == "rarity"
    if settings.get("dedup", True):
        return "fedraw" if rarity else "fedraw-dedup-only"
    return "fedraw-weight-only" if rarity else "fedraw-neither"
