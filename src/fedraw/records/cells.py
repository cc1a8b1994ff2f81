"""What the text of one cell means, or why it means nothing."""

from __future__ import annotations

import math
import re

from fedraw.core.labels import LARGEST_COUNT, REMEDY
from fedraw.core.types import LONGEST_TIME, SHORTEST_TIME

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


class Unreadable(ValueError):
    """Says what is wrong with a cell and what to write; the caller knows where it stands."""


def name(text: str) -> str:
    """A client's or label's name: blanks around it are nobody's intention.

    >>> name(" 007")
    '007'
    """
    trimmed = text.strip()
    if not trimmed:
        raise Unreadable("the name is empty; write one, or remove the row")
    return trimmed


def count(text: str) -> int:
    """A label count; 3.0 is as good as 3, because tables with gaps are often saved so.

    >>> count("3.0")
    3
    """
    text = text.strip(" \t")
    if _DIGITS.fullmatch(text):
        value: float = int(text)
    elif not text:
        raise Unreadable(f"the count is missing; {REMEDY}")
    else:
        value = number(text, f"a count; {REMEDY}")
    if value < 0:
        raise Unreadable(f"{shown(text)} is negative; {REMEDY}")
    if value > LARGEST_COUNT:
        raise Unreadable(f"{shown(text)} is too large to be exact; {REMEDY}")
    if value != math.floor(value):
        raise Unreadable(f"{shown(text)} is fractional; {REMEDY}")
    return int(value)


def count_or_none(text: str) -> int:
    """A cell of a wide table, where nothing is 0."""
    return count(text) if text.strip(" \t") else 0


def seconds(text: str) -> float:
    """How long something took.

    >>> seconds("0.25")
    0.25
    """
    remedy = "write a number of seconds above 0"
    text = text.strip(" \t")
    value = number(text, f"a time; {remedy}")
    if not 0 < value < math.inf:
        raise Unreadable(f"{shown(text)} is not above 0 and finite; {remedy}")
    if not SHORTEST_TIME <= value <= LONGEST_TIME:
        raise Unreadable(
            f"{shown(text)} is not from {SHORTEST_TIME:g} to {LONGEST_TIME:g}; {remedy}"
        )
    return value


def number(text: str, wanted: str) -> float:
    if not _NUMBER.fullmatch(text):
        what = shown(text) if text else "an empty cell"
        raise Unreadable(f"{what} is not {wanted}")
    return float(text)


def shown(text: str, longest: int = 40) -> str:
    """A value as a message quotes it."""
    return repr(text if len(text) <= longest else f"{text[:longest]}…")
