"""Numbers and sentences of an audit as text, rounded the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedraw.auditing.methods import verdict

UNKNOWN = "–"
TIED = "\N{NO-BREAK SPACE}"  # between a number and its unit
DECIMALS = 6  # the maximum number of decimals of a percentage


class Name(str):
    """A label's or client's name within a sentence, which a page marks up."""

    __slots__ = ()


# A sentence in parts; parts that are a `Name` come from the user's files.
Words = tuple[str, ...]


def plain_text(words: Words) -> str:
    """Return the sentence without markup.

    >>> plain_text(("label ", Name("cat"), " is rare"))
    'label cat is rare'
    """
    return "".join(words)


def enumeration(names: Sequence[object], most: int = 5) -> Words:
    """List names in a sentence; of the names beyond `most`, give only the number.

    >>> plain_text(enumeration(["a", "b", "c"], most=2)), plain_text(enumeration(["a", "b"]))
    ('a, b and 1 more', 'a and b')
    """
    shown = [Name(name) for name in names[:most]]
    rest = len(names) - len(shown)
    last: Words = (f" and {rest:,} more",) if rest else ()
    if not rest and len(shown) > 1:
        last = (" and ", shown.pop())
    parts = [part for name in shown for part in (", ", name)]
    return (*parts[1:], *last)


def percent(value: float | None) -> str:
    """Format a percentage, rounding to 0 or 100 only if it is exactly that.

    >>> [percent(v).replace(TIED, " ") for v in (62.44, 0.25, 99.97, 1e-9, None)]
    ['62.4 %', '0.25 %', '>99.9 %', '<0.01 %', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.005:
        return f"<0.01{TIED}%"
    if 0 < value < 0.995:
        return f"{value:.2f}{TIED}%"
    return f">99.9{TIED}%" if 99.95 <= value < 100 - 1e-9 else f"{value:.1f}{TIED}%"


def about(recall: float) -> str:
    """Format an expected recall, which is no more certain than its rounding.

    >>> [about(value).replace(TIED, " ") for value in (0.01, 0.43, 0.99)]
    ['below 5 %', 'about 45 %', 'above 95 %']
    """
    if recall < 0.05:
        return f"below 5{TIED}%"
    return f"above 95{TIED}%" if recall > 0.95 else f"about {5 * round(20 * recall)}{TIED}%"


def standing_text(standing: float, method: str) -> str:
    """Format a standing in percent, with enough digits not to contradict its verdict.

    >>> [standing_text(s, "fedfa") for s in (0.0342, 0.09996, 0.1, 0.00012)]
    ['3.4', '9.996', '10.0', '0.012']
    >>> [standing_text(s, "fedfa") for s in (1.0, 12.34, 0.1 - 1e-12, 0.0)]
    ['100', '1,234', '<10', '<0.000001']
    """
    value = 100 * standing
    if not math.isfinite(value):
        return UNKNOWN
    if value >= 99.95:
        return f"{value:,.0f}"
    if value < 10**-DECIMALS:
        return f"<{10**-DECIMALS:.{DECIMALS}f}"
    # One decimal, or as many as give two significant digits.
    fewest = min(max(1 - math.floor(math.log10(value)), 1), DECIMALS)
    for decimals in range(fewest, DECIMALS + 1):
        words = f"{value:.{decimals}f}"
        if verdict(method, float(words) / 100) == verdict(method, standing):
            return words
    words = f"{value:.{DECIMALS}f}".rstrip("0").rstrip(".")
    return f"{'<' if float(words) >= value else '>'}{words}"


def standing_percent(standing: float, method: str) -> str:
    """Format a standing like `standing_text`, with its unit."""
    words = standing_text(standing, method)
    return words if words == UNKNOWN else f"{words}{TIED}%"


def limit(standing: float) -> str:
    """Format a threshold of standing in percent.

    >>> [limit(end).replace(TIED, " ") for end in (0.3, 0.13, 0.015)]
    ['30 %', '13 %', '1.5 %']
    """
    return f"{100 * standing:g}{TIED}%"


def plain_number(value: float) -> str:
    """Format a time or a score with three significant digits and no exponent.

    >>> plain_number(0.12345), plain_number(45.678), plain_number(123456.7), plain_number(1e-7)
    ('0.123', '45.7', '123,457', '<0.001')
    """
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < abs(value) < 0.001:
        return "<0.001"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def rounded(value: float) -> int:
    """Round to a whole number with three significant digits.

    >>> rounded(73.8), rounded(3_440_683.2)
    (74, 3440000)
    """
    return round(float(f"{value:.3g}"))
