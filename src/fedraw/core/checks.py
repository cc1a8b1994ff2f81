"""Checks of settings: each raises a `BadInput` that names the setting, its value and its range."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedraw.errors import BadInput


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
