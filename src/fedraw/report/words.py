"""Formats progress, rates and times in few characters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from fedraw.core.text import one_line
from fedraw.eventlog.status import RunStatus
from fedraw.report.cells import UNDEFINED

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24


def spark(points: Sequence[tuple[int, float | None]], width: int = SPARK_WIDTH) -> str:
    """Percent over events as a row of blocks; the last value always at the right.

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


def share(run: RunStatus) -> float:
    return min(1.0, run.event / run.events) if run.events else 0.0


def percent(run: RunStatus) -> str:
    return f"{100 * share(run):.0f} %" if run.events else UNDEFINED


def signed(change: float | None) -> str:
    return UNDEFINED if change is None else f"{change:+.1f}".replace("-", "−")


def speed(rate: float | None) -> str:
    """Events a second, or a minute.

    >>> speed(140.2), speed(0.51), speed(0.05), speed(None)
    ('140/s', '31/min', '3.0/min', '–/s')
    """
    if rate is None:
        return f"{UNDEFINED}/s"
    value, unit = (rate, "s") if rate >= 1 else (60 * rate, "min")
    return f"{value:.{0 if value >= 10 else 1}f}/{unit}"


def duration(seconds: float | None) -> str:
    """Two units at most.

    >>> duration(4.2), duration(200), duration(7500), duration(100_000), duration(None)
    ('4 s', '3 min 20 s', '2 h 05 min', '1 d 3 h', '–')
    """
    if seconds is None:
        return UNDEFINED
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def fitted(text: str, width: int) -> str:
    shown = one_line(text)
    if cell_len(shown) <= width:
        return set_cell_size(shown, width)
    return set_cell_size(shown, width - 1) + "…"
