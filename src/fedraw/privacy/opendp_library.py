"""OpenDP, or what to install; and its mechanisms at a budget that they really keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fedraw.errors import MissingExtra


def opendp() -> ModuleType:
    try:
        from opendp import prelude
    except ImportError as error:
        raise MissingExtra("opendp", "privacy") from error
    # OpenDP's word for what has a written proof but no vetting by its committee yet: all of it.
    prelude.enable_features("contrib")
    return prelude


def within(
    epsilon: float, apart: int, make: Callable[[float], Any], parameter: float, safer: float
) -> Any:
    """The mechanism whose own accountant gives at most epsilon for inputs so far apart.

    A parameter computed in floats may miss the budget by a rounding; it is moved, float by float,
    towards the safer end until it does not.
    """
    mechanism = make(parameter)
    while mechanism.map(apart) > epsilon:
        parameter = math.nextafter(parameter, safer)
        mechanism = make(parameter)
    return mechanism
