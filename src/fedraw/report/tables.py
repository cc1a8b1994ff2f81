"""A comparison as a table: for the terminal, for a README, for a spreadsheet, for a paper."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from csv import writer

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedraw.core.text import one_line
from fedraw.eventlog.compare import ComparisonRow, notes_of
from fedraw.report.cells import UNDEFINED, Cell, Column, grid, has_spread, seeds_of, stat_of

# What fits 80 columns.
TERMINAL = ("GlobalAcc", "AvgRare", "MacroF1", "RareF1", "Worst10", "BufPres")

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


def text_table(rows: Sequence[ComparisonRow], columns: Sequence[str] | None = None) -> Table:
    """For the terminal; the best mean of a column is bold and has a star.

               GlobalAcc   AvgRare
    ──────────────────────────────
     fedraw    90.0±0.4* 61.8±3.2*
     fedfa     81.9±0.9   9.5±1.1
    """
    shown = grid(rows, TERMINAL if columns is None else columns)
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, caption_justify="left")
    table.caption = _caption(rows, shown)
    table.add_column("", overflow="fold", min_width=8)
    for column in shown:
        width = max(len(column.metric), *map(len, _aligned(column.cells)))
        table.add_column(column.metric.rjust(width), no_wrap=True, min_width=width)
    for position, row in enumerate(rows):
        table.add_row(Text(one_line(row.title)), *(_text(column, position) for column in shown))
    return table


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """A pipe table, the best mean in bold."""
    columns = grid(rows)
    head = ["", *(column.metric for column in columns)]
    body = [
        [_markdown_text(row.title), *(_markdown_cell(column.cells[position]) for column in columns)]
        for position, row in enumerate(rows)
    ]
    widths = [max(4, *map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    table = "".join(_piped(line, widths) for line in [head, rule, *body])
    return table + "".join(f"\n{_markdown_text(note)}\n" for note in notes_of(rows))


def csv(rows: Sequence[ComparisonRow]) -> str:
    """Mean and sd of each metric in columns of their own, in full precision; undefined is empty."""
    metrics = [column.metric for column in grid(rows)]
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    names = [f"{metric}_{part}" for metric in metrics for part in ("mean", "sd")]
    out.writerow(["name", "seeds", *names, "notes"])
    for row in rows:
        stats = [stat_of(row.metrics, metric) for metric in metrics]
        values = [value for stat in stats for value in (stat.mean, stat.sd)]
        seeds = " ".join(str(seed) for seed in row.seeds if seed is not None)
        out.writerow([row.name, seeds, *values, "; ".join(row.notes)])
    return text.getvalue()


def latex(rows: Sequence[ComparisonRow]) -> str:
    r"""A `tabular` for \usepackage{booktabs}, the best mean in bold."""
    columns = grid(rows)
    head = ["", *(column.metric for column in columns)]
    body = [
        [_latex_text(row.title), *(_latex_cell(column.cells[position]) for column in columns)]
        for position, row in enumerate(rows)
    ]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(head).lstrip() + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {_latex_text(note)}}}" for note in notes_of(rows)),
    ]
    return "\n".join(lines) + "\n"


def _caption(rows: Sequence[ComparisonRow], columns: Sequence[Column]) -> str | None:
    spread = f"mean±sd over {seeds_of(rows)}" if has_spread(rows) else ""
    marked = any(cell.best for column in columns for cell in column.cells)
    words = [part for part in (spread, "* best of its column" if marked else "") if part]
    lines = ["; ".join(words), *map(escape, notes_of(rows))]
    return "\n".join(line for line in lines if line) or None


def _aligned(cells: Sequence[Cell]) -> list[str]:
    """Decimal points under one another: means to the right, spreads and stars to the left."""
    wide = max(len(cell.mean) for cell in cells)
    tails = [(f"±{cell.sd}" if cell.sd else "") + "*" * cell.best for cell in cells]
    tail = max(map(len, tails))
    return [c.mean.rjust(wide) + text.ljust(tail) for c, text in zip(cells, tails, strict=True)]


def _text(column: Column, position: int) -> Text:
    # Padded here, since Rich takes the trailing blanks off what it aligns to the right.
    text = _aligned(column.cells)[position].rjust(len(column.metric))
    return Text(text, style="bold" if column.cells[position].best else "")


def _markdown_text(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown_cell(cell: Cell) -> str:
    text = f"{cell.mean} ± {cell.sd}" if cell.sd else cell.mean
    return f"**{text}**" if cell.best else text


def _piped(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *values = cells
    padded = [name.ljust(widths[0])]
    padded += [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |\n"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def _latex_cell(cell: Cell) -> str:
    if cell.mean == UNDEFINED:
        return "--"
    mean = rf"\mathbf{{{cell.mean}}}" if cell.best else cell.mean
    return rf"${mean} \pm {cell.sd}$" if cell.sd else f"${mean}$"
