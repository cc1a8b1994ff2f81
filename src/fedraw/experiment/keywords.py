"""Says in the words of Python what is wrong with the arguments of `fedraw.simulate`.

A setting that is given as a keyword of its own is told where it belongs, and a message about a key
of the spec names the keyword that sets it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from fedraw.core.removed import removal
from fedraw.core.settings import keys
from fedraw.core.text import several
from fedraw.errors import BadInput, nearest
from fedraw.experiment.sections import PARTITIONS, SPEEDS, Run
from fedraw.experiment.spec import Spec
from fedraw.learning.sgd import SGD
from fedraw.strategies.catalog import CATALOG, Method, method_of

P = ParamSpec("P")
R = TypeVar("R")

_KEY = re.compile(r"(?<![\w./\\-])(run|metrics|training)\.([a-z_]+)\b(?![./\\])")
_TRUTH = re.compile(r"(?<= = )(true|false)\b")
_KEYS = {
    "run": set(keys(Run)),
    "metrics": {"rare_labels"},
    "training": {*keys(SGD), "device"},
}


def as_keywords(message: str) -> str:
    """Write the keys and truth values of a spec in a message as those of `fedraw.simulate`.

    >>> as_keywords("run.events = 0 must be at least 1")
    'events = 0 must be at least 1'
    >>> as_keywords("training.lr = 1000 is far above useful learning rates")
    'train.lr = 1000 is far above useful learning rates'
    >>> as_keywords("run.toml does not exist")
    'run.toml does not exist'
    >>> as_keywords("use at most 30, or dedup = false")
    'use at most 30, or dedup = False'
    """
    return _TRUTH.sub(lambda found: found[0].title(), _KEY.sub(_as_keyword, message))


def _as_keyword(found: re.Match[str]) -> str:
    section, key = found.groups()
    if key not in _KEYS[section]:
        return found[0]
    if section != "training" or key == "device":
        return key
    # A remedy ("set training.lr") may be for a function of the user, which has no such settings.
    return f"train.{key}" if found.string.startswith(" = ", found.end()) else found[0]


def in_words_of_python(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of keywords name them in its errors, and refuse an unknown one helpfully."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        unknown = next((key for key in given if key not in known), None)
        if unknown is not None:
            raise BadInput(
                _remedy(unknown, {**dict(zip(known, args, strict=False)), **given}, known)
            )
        try:
            return function(*args, **given)
        except BadInput as problem:
            problem.args = (as_keywords(str(problem)), *problem.args[1:])
            raise

    return checked


def _remedy(key: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return where the setting belongs, or which keyword the user may have meant."""
    value, method = given[key], _method(given)
    gone = removal(f"run.{key}", value) or removal(f"strategy.{key}", value)
    if gone:
        return as_keywords(gone)
    if method is not None and key in method.spec_settings:
        chosen = {**method.preset, **method.defaults, key: value}
        written = ", ".join(f"{name}={setting!r}" for name, setting in chosen.items())
        return (
            f"{key} = {value!r} is a setting of the method {method.name!r}; write "
            f"strategy=fedraw.{method.factory.__name__}({written})"
        )
    for argument, kinds in (("train", (SGD,)), ("partition", PARTITIONS), ("speeds", SPEEDS)):
        kind = next((own for own in kinds if key in inspect.signature(own).parameters), None)
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
    hint = nearest(key, [*known, *settings])
    if method is not None and hint in {f"did you mean {own!r}?" for own in settings}:
        hint = f"{hint[:-1]}, a setting of strategy=fedraw.{method.factory.__name__}(...)?"
    return f"simulate has no argument {key!r}; {hint}"


def _method(given: Mapping[str, Any]) -> Method | None:
    """Return the method that the arguments choose; None if it is the user's own."""
    strategy, spec = given.get("strategy"), given.get("spec")
    if strategy is None:
        strategy = (spec if isinstance(spec, Spec) else Spec()).strategy.name
    return CATALOG.get(strategy) if isinstance(strategy, str) else method_of(strategy)
