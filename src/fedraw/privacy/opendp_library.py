"""The library OpenDP, and its mechanisms within a privacy budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fedraw.errors import MissingExtra


def opendp() -> ModuleType:
    """Import OpenDP; MissingExtra says what to install."""
    try:
        from opendp import prelude
    except ImportError as error:
        raise MissingExtra("opendp", "privacy") from error
    # All mechanisms that OpenDP has proved but its committee has not yet vetted are "contrib".
    prelude.enable_features("contrib")
    return prelude


def within(
    epsilon: float, apart: int, make: Callable[[float], Any], parameter: float, safer: float
) -> Any:
    """Return a mechanism that costs at most epsilon for inputs that are `apart`, as OpenDP counts.

    A parameter computed with floats may exceed the budget by a rounding error. It is moved float by
    float towards `safer` until it does not.
    """
    mechanism = make(parameter)
    while mechanism.map(apart) > epsilon:
        parameter = math.nextafter(parameter, safer)
        mechanism = make(parameter)
    return mechanism
