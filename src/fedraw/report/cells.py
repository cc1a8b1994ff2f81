"""What one cell of a comparison shows: rounded alike in the terminal, in files and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedraw.eventlog.compare import ComparisonRow, Stat
from fedraw.eventlog.summary import METRICS, QUALITY

UNDEFINED = "–"
PRECISE = frozenset({"Jain"})
# The others say how often and how late rare clients are heard; more of it is no merit in itself.
HIGHER_IS_BETTER = frozenset(QUALITY)
_NOTHING = Stat(None, None, ())


class Cell(NamedTuple):
    mean: str
    sd: str  # empty where there is only one seed, or no mean
    best: bool


class Column(NamedTuple):
    metric: str
    cells: list[Cell]


def grid(rows: Sequence[ComparisonRow], metrics: Sequence[str] = METRICS) -> list[Column]:
    """A column for each metric that at least one row has, a cell for each row.

    >>> rows = [ComparisonRow("a", (1, 2), {"GlobalAcc": Stat.of([80, 90])}),
    ...         ComparisonRow("b", (1, 2), {"GlobalAcc": Stat.of([70, 90])})]
    >>> for column in grid(rows):
    ...     print(column.metric, [" ± ".join(cell[:2]) for cell in column.cells])
    GlobalAcc ['85.0 ± 5.0', '80.0 ± 10.0']
    """
    return [
        Column(metric, _cells(rows, metric))
        for metric in metrics
        if any(stat_of(row.metrics, metric).mean is not None for row in rows)
    ]


def stat_of(metrics: Mapping[str, Stat], metric: str) -> Stat:
    return metrics.get(metric, _NOTHING)


def number(metric: str, value: float | None) -> str:
    """A value as text: one decimal, three for Jain.

    >>> number("GlobalAcc", 89.97), number("Jain", 0.99), number("Jain", None)
    ('90.0', '0.990', '–')
    """
    if value is None:
        return UNDEFINED
    return f"{value:.{3 if metric in PRECISE else 1}f}"


def seeds_of(rows: Sequence[ComparisonRow]) -> str:
    """How many seeds stand behind a row, as words; real federations have none, and are runs.

    >>> seeds_of([ComparisonRow("a", (1, 2, 3), {}), ComparisonRow("b", (1,), {})])
    '1 to 3 seeds'
    >>> seeds_of([ComparisonRow("a", (None,), {})])
    '1 run'
    """
    counts = sorted({len(row.seeds) for row in rows})
    noun = "run" if any(None in row.seeds for row in rows) else "seed"
    if not counts:
        return f"no {noun}s"
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} {noun}s"
    return f"1 {noun}" if counts == [1] else f"{counts[0]} {noun}s"


def has_spread(rows: Sequence[ComparisonRow]) -> bool:
    return any(len(row.seeds) > 1 for row in rows)


def _cells(rows: Sequence[ComparisonRow], metric: str) -> list[Cell]:
    stats = [stat_of(row.metrics, metric) for row in rows]
    best = _best(metric, rows)
    return [
        Cell(
            number(metric, stat.mean),
            "" if stat.sd is None or len(stat.values) < 2 else number(metric, stat.sd),
            stat.mean is not None and number(metric, stat.mean) == best and not row.collapsed,
        )
        for row, stat in zip(rows, stats, strict=True)
    ]


def _best(metric: str, rows: Sequence[ComparisonRow]) -> str | None:
    """The highest mean as it is shown: what reads the same is marked the same.

    Rows with a collapsed model do not take part.
    """
    stats = [stat_of(row.metrics, metric) for row in rows if not row.collapsed]
    means = [stat.mean for stat in stats if stat.mean is not None]
    if metric not in HIGHER_IS_BETTER or len(rows) < 2 or not means:
        return None
    return number(metric, max(means))
