"""A comparison as a table for the terminal, in Markdown, CSV and LaTeX.

All formats and the page use `grid`, so they round numbers and mark the best row in the same way.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from csv import writer
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedraw.core.text import one_line
from fedraw.eventlog.compare import (
    ComparisonRow,
    PairedDifference,
    Stat,
    budget_notes,
    leader,
    notes_of,
)
from fedraw.eventlog.metrics import FURTHER_MODELS, METRICS, QUALITY, VALUES_OF, is_shown_unasked
from fedraw.report.formatting import UNDEFINED, number, signed, span

# The default metrics of the terminal, which fit into 80 columns; and beside arrivals to goals.
TERMINAL = ("GlobalAcc", "AvgRare", "MacroF1", "RareF1", "Worst10", "BufPres")
BESIDE_GOALS = ("GlobalAcc", "AvgRare")
# The width of a terminal that is not known, and of the narrowest column of names.
TERMINAL_WIDTH, NARROWEST_NAMES = 80, 8
# The default metrics of LaTeX, which fit into a column of a paper.
PAPER = ("GlobalAcc", "AvgRare", "MacroF1")
PAPER_HEADS = {
    "GlobalAcc": "Global",
    "LocalRare": "LocRare",
    "LocalCommon": "LocCom",
    "MeanClient": "Client",
    "RareMeanStale": "Stale",
    "RareMaxStale": "MaxStale",
}
# The other metrics measure the participation of rare clients, where more is not always better.
HIGHER_IS_BETTER = frozenset(
    [*QUALITY, *(f"{model} {metric}" for model in FURTHER_MODELS for metric in QUALITY)]
)

_NO_VALUES = Stat(None, None, ())
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: "\\" + character for character in "&%$#_"},
}


def shown_metrics(
    rows: Sequence[ComparisonRow], wanted: Sequence[str] | None, default: Sequence[str]
) -> Sequence[str]:
    """Return the metrics to show: those asked for, or the default ones and the user's own.

    >>> rows = [ComparisonRow("a", (1,), {"GlobalAcc": Stat.of([80]), "rmse": Stat.of([0.5])})]
    >>> shown_metrics(rows, None, ["GlobalAcc", "AvgRare"])
    ['GlobalAcc', 'AvgRare', 'rmse']
    """
    if wanted is not None:
        return wanted
    every = dict.fromkeys(metric for row in rows for metric in row.metrics)
    columns = dict(own for row in rows for own in row.goal_columns().items())
    goals = [name for name, (_, unit) in columns.items() if unit != "hours"]
    return [*default[:2], *goals, *default[2:], *filter(is_shown_unasked, every)]


class MetricCell(NamedTuple):
    """One value of a comparison, formatted."""

    mean: str
    sd: str  # empty if there is only one seed, or no mean
    best: bool


class MetricColumn(NamedTuple):
    """A metric, and its value in each row of a comparison."""

    metric: str
    cells: list[MetricCell]
    is_goal: bool = False  # when a goal was reached, instead of a metric


def grid(rows: Sequence[ComparisonRow], metrics: Sequence[str] | None = None) -> list[MetricColumn]:
    """Return a column for each metric that at least one row has, with a cell for each row.

    A value is marked if it is clearly the best of its column; see `leader`.

    >>> rows = [ComparisonRow("a", (1, 2), {"GlobalAcc": Stat.of([80, 90])}),
    ...         ComparisonRow("b", (1, 2), {"GlobalAcc": Stat.of([70, 90])})]
    >>> for column in grid(rows):
    ...     print(column.metric, [" ± ".join(cell[:2]) for cell in column.cells])
    GlobalAcc ['85.0 ± 7.1', '80.0 ± 14.1']
    """
    goals = {column for row in rows for column in row.goal_columns()}
    return [
        MetricColumn(metric, _cells(rows, metric), metric in goals)
        for metric in shown_metrics(rows, metrics, METRICS)
        if metric in goals or any(stat_of(row.metrics, metric).mean is not None for row in rows)
    ]


def stat_of(metrics: Mapping[str, Stat], metric: str) -> Stat:
    """Return the statistics of a metric; empty ones if the metric was not measured."""
    return metrics.get(metric, _NO_VALUES)


def seeds_of(rows: Sequence[ComparisonRow]) -> str:
    """Return the number of seeds of the rows as text; a real federation counts as a run.

    >>> seeds_of([ComparisonRow("a", (1, 2, 3), {}), ComparisonRow("b", (1,), {})])
    '1 to 3 seeds'
    >>> seeds_of([ComparisonRow("a", (None,), {})])
    '1 run'
    """
    counts = {len(row.seeds) for row in rows}
    noun = "run" if any(None in row.seeds for row in rows) else "seed"
    if not counts:
        return f"no {noun}s"
    return f"{span(list(counts))} {noun}" + "s" * (counts != {1})


def has_spread(rows: Sequence[ComparisonRow]) -> bool:
    """Return whether any row has more than one seed."""
    return any(len(row.seeds) > 1 for row in rows)


def text_table(
    rows: Sequence[ComparisonRow],
    columns: Sequence[str] | None = None,
    width: int = TERMINAL_WIDTH,
) -> Group:
    """Return a table for the terminal; a mean that is clearly the best is bold and has a star.

    Metrics that do not fit beside the others form further tables below them. Names that are longer
    than a quarter of the width may be broken over several lines.

               GlobalAcc   AvgRare
    ──────────────────────────────
     fedraw    90.0±0.4* 61.8±3.2*
     fedfa     81.9±0.9   9.5±1.1
    """
    further = any(name.startswith(FURTHER_MODELS) for row in rows for name in row.metrics)
    default: Sequence[str] = TERMINAL[:4] if further else TERMINAL
    if any(row.reached for row in rows):
        default = BESIDE_GOALS
    shown = grid(rows, shown_metrics(rows, columns, default))
    titles = [one_line(row.title) for row in rows]
    longest = max([NARROWEST_NAMES, *map(cell_len, titles)])
    least = min(longest, max(NARROWEST_NAMES, width // 4))
    blocks = _blocks(shown, width - least, _text_width)
    left = width - max(sum(map(_text_width, block)) for block in blocks)
    names = min(longest, max(least, left))
    tables = [_text_block(titles, block, names) for block in blocks]
    spaced = [part for table in tables for part in ("", table)][1:]
    caption = _caption(rows, shown)
    return Group(*spaced, *([Text(caption, style="table.caption")] if caption else []))


def markdown(rows: Sequence[ComparisonRow], metrics: Sequence[str] | None = None) -> str:
    """Return a Markdown table with the best means in bold, followed by its caption and notes."""
    columns = grid(rows, metrics)
    head = ["", *(_markdown_text(column.metric) for column in columns)]
    body = [
        [_markdown_text(row.title), *(_markdown_cell(column.cells[n]) for column in columns)]
        for n, row in enumerate(rows)
    ]
    widths = [max(4, *map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    table = "".join(_piped(line, widths) for line in [head, rule, *body])
    caption = _caption(rows, columns) or ""
    return table + "".join(f"\n{_markdown_text(line)}\n" for line in caption.splitlines())


def csv(rows: Sequence[ComparisonRow], metrics: Sequence[str] | None = None) -> str:
    """Return a CSV with mean and sd of each metric in full precision; undefined is empty.

    A goal has its median over the seeds, and how many of them reached it. The notes of a row are
    its own and those about differences between the rows.
    """
    columns = grid(rows, metrics)
    metrics = [column.metric for column in columns if not column.is_goal]
    goals = [column.metric for column in columns if column.is_goal]
    common_notes = budget_notes(rows)
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    names = [f"{metric}_{part}" for metric in metrics for part in ("mean", "sd")]
    names += [f"{goal}_{part}" for goal in goals for part in ("median", "seeds")]
    out.writerow(["name", "seeds", "events", *names, "collapsed", "notes"])
    for row in rows:
        stats = [stat_of(row.metrics, metric) for metric in metrics]
        values = [value for stat in stats for value in (stat.mean, stat.sd)]
        reached = row.goal_columns()
        for goal in goals:
            own = reached.get(goal)
            values += [None, None] if own is None else [own[0].median(own[1]), own[0].count]
        seeds = " ".join(str(seed) for seed in row.seeds if seed is not None)
        events = " ".join(map(str, dict.fromkeys(row.events)))
        notes = "; ".join([*row.notes, *common_notes])
        out.writerow([row.name, seeds, events, *values, row.collapsed, notes])
    return text.getvalue()


def latex(rows: Sequence[ComparisonRow], metrics: Sequence[str] | None = None) -> str:
    r"""Return a LaTeX `tabular` with the best means in bold; it needs \usepackage{booktabs}."""
    columns = grid(rows, shown_metrics(rows, metrics, PAPER)) or grid(rows)
    heads = [_latex_text(PAPER_HEADS.get(column.metric, column.metric)) for column in columns]
    lines = [
        r"{\footnotesize\setlength{\tabcolsep}{3pt}%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(columns)}@{{}}}}",
        r"\toprule",
        "".join(f"& {head} " for head in heads) + r"\\",
        r"\midrule",
    ]
    for n, row in enumerate(rows):
        cells = [_latex_cell(own.cells[n], in_words=own.is_goal) for own in columns]
        lines.append(" & ".join([_latex_text(row.title), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    lines += [rf"\par\smallskip{{\footnotesize {_latex_text(note)}}}" for note in notes_of(rows)]
    return "\n".join(lines) + "\n"


def paired_table(differences: Sequence[PairedDifference]) -> Table:
    """Return a table for the terminal, with a line for each pair of rows and metric."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, caption_justify="left")
    for head in ("", "metric", "difference", "95 % interval", "seeds"):
        table.add_column(head, justify="left" if head in ("", "metric") else "right")
    for pair in differences:
        table.add_row(
            Text(one_line(f"{pair.one} − {pair.other}")),
            pair.metric,
            signed(pair.mean) + ("*" if pair.is_clear else " "),
            UNDEFINED if pair.low is None else f"{signed(pair.low)} to {signed(pair.high)}",
            str(len(pair.seeds)),
        )
    table.caption = "mean difference over the common seeds; * the interval excludes 0"
    return table


def _cells(rows: Sequence[ComparisonRow], metric: str) -> list[MetricCell]:
    best = leader(rows, metric) if metric in HIGHER_IS_BETTER else None
    cells = []
    for row in rows:
        goals, stat = row.goal_columns(), stat_of(row.metrics, metric)
        if metric in goals:
            reached, unit = goals[metric]
            middle = number(unit, reached.median(unit))
            cells.append(MetricCell(str(reached) if unit == "arrivals" else middle, "", False))
        else:
            sd = "" if stat.sd is None else number(metric, stat.sd)
            cells.append(MetricCell(number(metric, stat.mean), sd, row is best))
    return cells


def _blocks(
    columns: Sequence[MetricColumn], space: float, width_of: Callable[[MetricColumn], float]
) -> list[list[MetricColumn]]:
    """Divide the columns into one or more blocks that fit into the space beside the names."""
    blocks: list[list[MetricColumn]] = [[]]
    left = space
    for column in columns:
        width = width_of(column)
        if width > left and blocks[-1]:
            blocks.append([])
            left = space
        blocks[-1].append(column)
        left -= width
    return blocks


def _caption(rows: Sequence[ComparisonRow], columns: Sequence[MetricColumn]) -> str | None:
    spread = f"mean±sd over {seeds_of(rows)}" if has_spread(rows) else ""
    marked = any(cell.best for column in columns for cell in column.cells)
    is_tail = rows[0].last if rows and {c.metric for c in columns} & HIGHER_IS_BETTER else None
    model = "" if is_tail is None else VALUES_OF[is_tail]
    words = [
        ", ".join(part for part in (spread, model) if part),
        goal_caption(rows) if any(column.is_goal for column in columns) else "",
        "* ahead of every other row, seed by seed (95 %)" if marked else "",
    ]
    words = [part for part in words if part]
    lines = ["; ".join(words), *notes_of(rows)]
    return "\n".join(line for line in lines if line) or None


def goal_caption(rows: Sequence[ComparisonRow]) -> str:
    """Say what the arrivals to a goal are, and how far apart the evaluations are."""
    spacings = {own.spacing for row in rows for own in row.reached.values()} - {None}
    spacing = spacings.pop() if len(spacings) == 1 else None
    apart = f", {spacing:,} arrivals apart," if spacing else ""
    some = any(0 < own.count < len(own.within) for row in rows for own in row.reached.values())
    return (
        f"arrivals to 50 %: from when on five evaluations{apart} have a mean AvgRare of 50 %; "
        "median and virtual time"
        + "; in brackets, how many seeds got there if not all or none did"
        * some
    )


def _aligned(cells: Sequence[MetricCell]) -> list[str]:
    """Align the decimal points: means to the right, spreads and stars to the left."""
    wide = max(len(cell.mean) for cell in cells)
    tails = [(f"±{cell.sd}" if cell.sd else "") + "*" * cell.best for cell in cells]
    tail = max(map(len, tails))
    return [c.mean.rjust(wide) + text.ljust(tail) for c, text in zip(cells, tails, strict=True)]


def _text_block(titles: Sequence[str], block: Sequence[MetricColumn], names: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    # With a fixed width, Rich shortens a metric that is too wide, and never the names.
    table.add_column("", overflow="fold", width=names)
    for column in block:
        table.add_column(_text_head(column), overflow="fold", vertical="bottom")
    for position, title in enumerate(titles):
        table.add_row(Text(title), *(_text(column, position) for column in block))
    return table


def _text_head(column: MetricColumn) -> str:
    first, _, goal = column.metric.partition(" to ")
    words = [first, f"to {goal}"] if column.is_goal else column.metric.split()
    width = max(map(len, [*words, *_aligned(column.cells)]))
    return "\n".join(word.rjust(width) for word in words)


def _text_width(column: MetricColumn) -> int:
    """Return the width of a column with the blank before it, in characters."""
    return 1 + max(map(cell_len, _text_head(column).split("\n")))


def _text(column: MetricColumn, position: int) -> Text:
    # Rich strips trailing blanks from a right-aligned column, so the text is padded here.
    text = _aligned(column.cells)[position].rjust(_text_width(column) - 1)
    return Text(text, style="bold" if column.cells[position].best else "")


def _markdown_text(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown_cell(cell: MetricCell) -> str:
    text = f"{cell.mean} ± {cell.sd}" if cell.sd else cell.mean
    return f"**{text}**" if cell.best else text


def _piped(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *values = cells
    padded = [name.ljust(widths[0])]
    padded += [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |\n"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def _latex_cell(cell: MetricCell, in_words: bool) -> str:
    if in_words:
        return _latex_text(cell.mean)
    if cell.mean == UNDEFINED:
        return "--"
    mean = rf"\mathbf{{{cell.mean}}}" if cell.best else cell.mean
    return rf"${mean}{{\scriptstyle\pm{cell.sd}}}$" if cell.sd else f"${mean}$"
