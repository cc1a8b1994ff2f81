"""The last model against the mean of the last five: how much of a verdict is the moment it stopped.

The paper measures the model after the last event. FedRAW's swings from event to event, because a
rare client's update in the buffer or out of it is a large part of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import fill

from fedraw_studies.cells import CellRecord
from fedraw_studies.outcomes import Outcome, RowOutcome
from fedraw_studies.rules import Interval

OURS = "FedRAW"
OTHERS = ("FedFa", "FedBuff", "CA2FL")
METRICS = ("AvgRare", "GlobalAcc")
FEWEST = 2
HEAD = """\
| FedRAW minus | metric | seeds | last model | mean of the last five |
| --- | --- | --: | --: | --: |
"""
CAPTION = (
    "FedRAW minus another method, seed by seed, in points: the mean difference and its 95 % "
    "interval. The last model is what the paper measures; beside it the mean of the last five "
    "evaluations of the same runs. Bold: the interval excludes zero."
)

Read = Callable[[CellRecord], Mapping[str, float | None]]


def steady_markdown(table: Outcome) -> str | None:
    """None until two seeds of two methods of one data set are there."""
    methods = {(row.dataset, row.method): row for row in table.rows}
    lines = []
    for dataset in dict.fromkeys(row.dataset for row in table.rows):
        for other in OTHERS:
            one, two = methods.get((dataset, OURS)), methods.get((dataset, other))
            if one is not None and two is not None:
                lines += _lines(one, two)
    if not lines:
        return None
    title = "# The last model, and the mean of the last five\n"
    return "\n".join([title, fill(CAPTION, 100) + "\n", HEAD + "".join(lines)])


def _lines(one: RowOutcome, other: RowOutcome) -> list[str]:
    seeds = [seed for seed in one.records if seed in other.records]
    if len(seeds) < FEWEST:
        return []
    lines = []
    for metric in METRICS:
        cells = [_differences(one, other, metric, lambda record: record.metrics)]
        cells.append(_differences(one, other, metric, lambda record: record.tail))
        lines.append(f"| {other.label} | {metric} | {len(seeds)} | {' | '.join(cells)} |\n")
    return lines


def _differences(one: RowOutcome, other: RowOutcome, metric: str, read: Read) -> str:
    pairs = [
        (read(record).get(metric), read(other.records[seed]).get(metric))
        for seed, record in one.records.items()
        if seed in other.records
    ]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    if len(known) < FEWEST:
        return "–"
    mean, low, high = Interval.of(known)
    text = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text
