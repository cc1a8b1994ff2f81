"""Says where a setting belongs that is given to `fedraw.simulate` as a keyword of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from fedraw.core.text import several
from fedraw.errors import BadInput, nearest
from fedraw.experiment.sections import PARTITIONS, SPEEDS
from fedraw.experiment.spec import Spec
from fedraw.learning.sgd import SGD
from fedraw.strategies.catalog import CATALOG, Method, method_of

P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of keywords refuse an unknown one with a sentence that helps."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        unknown = next((key for key in given if key not in known), None)
        if unknown is not None:
            raise BadInput(
                _remedy(unknown, {**dict(zip(known, args, strict=False)), **given}, known)
            )
        return function(*args, **given)

    return checked


def _remedy(key: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return where the setting belongs, or which keyword the user may have meant."""
    value, method = given[key], _method(given)
    if method is not None and key in method.spec_settings:
        chosen = {**method.preset, **method.defaults, key: value}
        written = ", ".join(f"{name}={setting!r}" for name, setting in chosen.items())
        return (
            f"{key} = {value!r} is a setting of the method {method.name!r}; write "
            f"strategy=fedraw.{method.factory.__name__}({written})"
        )
    for argument, kinds in (("train", (SGD,)), ("partition", PARTITIONS), ("speeds", SPEEDS)):
        kind = next((own for own in kinds if key in {f.name for f in fields(own)}), None)
        if kind is not None:
            return (
                f"{key} = {value!r} is a setting of {argument}; write "
                f"{argument}=fedraw.{kind.__name__}({key}={value!r})"
            )
    owners = [own.name for own in CATALOG.values() if key in own.spec_settings]
    if owners:
        whose = "the strategy" if method is None else f"the method {method.name!r}"
        return (
            f"{key} = {value!r} is not a setting of {whose}; methods with this setting are "
            f"{several(owners, 20)}"
        )
    settings = [] if method is None else list(method.spec_settings)
    return f"simulate has no argument {key!r}; {nearest(key, [*known, *settings])}"


def _method(given: Mapping[str, Any]) -> Method | None:
    """Return the method that the arguments choose; None if it is the user's own."""
    strategy, spec = given.get("strategy"), given.get("spec")
    if strategy is None:
        strategy = (spec if isinstance(spec, Spec) else Spec()).strategy.name
    return CATALOG.get(strategy) if isinstance(strategy, str) else method_of(strategy)
