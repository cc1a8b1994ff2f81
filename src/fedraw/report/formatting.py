"""Formats numbers, changes and rates as short text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from fedraw.core.text import one_line
from fedraw.eventlog.metrics import BUILT_IN, COSTS

UNDEFINED = "–"
# Metrics that are shown with three decimals instead of one.
PRECISE = frozenset({"Jain"})
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24


def number(metric: str, value: float | None) -> str:
    """Format the value of a metric: one decimal, three for Jain, significant digits for others.

    >>> number("GlobalAcc", 89.97), number("Jain", 0.99), number("Jain", None)
    ('90.0', '0.990', '–')
    >>> number("hours", 0.01234), number("MB to AvgRare>=50", 12345.6)
    ('0.0123', '12,346')
    """
    if value is None:
        return UNDEFINED
    if metric.partition(" ")[0] in COSTS:  # costs have very different magnitudes
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if metric and metric.rsplit(maxsplit=1)[-1] not in BUILT_IN:  # a user's metric
        return f"{value:.4g}"
    return f"{value:.{3 if metric in PRECISE else 1}f}"


def signed(change: float | None) -> str:
    """Format a change with its sign.

    >>> signed(1.25), signed(-0.5), signed(None)
    ('+1.2', '−0.5', '–')
    """
    return UNDEFINED if change is None else f"{change:+.1f}".replace("-", "−")


def span(values: Sequence[float], form: str = "{}") -> str:
    """Format the range of values; one number if both ends have the same text.

    >>> span([2, 5, 3]), span([1.04, 0.96], "{:.1f}")
    ('2 to 5', '1.0')
    """
    return " to ".join(dict.fromkeys([form.format(min(values)), form.format(max(values))]))


def speed(rate: float | None) -> str:
    """Format a number of events per second, or per minute if it is small.

    >>> speed(140.2), speed(0.51), speed(0.05), speed(None)
    ('140/s', '31/min', '3.0/min', '–/s')
    """
    if rate is None:
        return f"{UNDEFINED}/s"
    value, unit = (rate, "s") if rate >= 1 else (60 * rate, "min")
    return f"{value:.{0 if value >= 10 else 1}f}/{unit}"


def spark(points: Sequence[tuple[int, float | None]], width: int = SPARK_WIDTH) -> str:
    """Draw percentages over events as a row of blocks; the last value is always at the right.

    >>> spark([(10, 0.0), (20, 50.0), (30, 100.0)], width=3)
    '▁▅█'
    """
    known = [(event, value) for event, value in points if value is not None]
    columns: list[list[float]] = [[] for _ in range(min(width, len(points)))]
    if not known:
        return " " * len(columns)
    last = max(1, points[-1][0])
    for event, value in known:
        columns[min(len(columns) - 1, max(0, (event * len(columns) - 1) // last))].append(value)
    shown, before = "", known[0][1]
    for values in columns:
        before = sum(values) / len(values) if values else before
        shown += SPARKS[min(7, max(0, int(before * 8 / 100)))]
    return shown


def fitted(text: str, width: int) -> str:
    """Pad or cut text to exactly `width` columns of a terminal.

    >>> fitted("north", 7), fitted("north-east", 7)
    ('north  ', 'north-…')
    """
    shown = one_line(text)
    if cell_len(shown) <= width:
        return set_cell_size(shown, width)
    return set_cell_size(shown, width - 1) + "…"
