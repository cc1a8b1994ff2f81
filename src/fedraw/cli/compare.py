"""`fedraw compare`: compare many runs in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.cli.options import Json
from fedraw.errors import BadInput
from fedraw.eventlog.compare import Comparison, PairedDifference, goal_words, paired
from fedraw.eventlog.compare import compare as compare_runs
from fedraw.eventlog.goals import Goal
from fedraw.report.tables import csv, latex, markdown, paired_table, text_table


class Format(StrEnum):
    """Output formats besides the table for the terminal."""

    md = "md"
    csv = "csv"
    latex = "latex"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="One or more folders with runs.")
    ],
    metrics: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Metrics to show, such as GlobalAcc,AvgRare."),
    ] = None,
    until: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GOAL",
            help="Also show when a goal such as GlobalAcc>=90, or 8>=50 for the recall of label 8, "
            "was reached.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric to sort by, highest first; or name."),
    ] = None,
    last: Annotated[
        bool,
        typer.Option(
            "--last", help="Show the last model instead of the mean of the last five evaluations."
        ),
    ] = False,
    paired_: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Compare the first row with each other row, seed by seed: the mean difference "
            "and its 95 % interval.",
        ),
    ] = False,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Print the table in this format.")
    ] = None,
    json_: Json = False,
) -> None:
    """Compare runs in one table, with mean ± sd over seeds, and when rare labels were recognised.

    Metrics are means of the last five evaluations. A star marks a row that is ahead of every other
    row in the paired comparison of their seeds.
    """
    if json_ and format_ is not None:
        raise BadInput("--json and --format exclude each other; give one")
    if paired_ and format_ is not None:
        raise BadInput("--paired prints a table or, with --json, JSON; leave --format out")
    if paired_ and until:
        raise BadInput("--paired compares metrics, and --until adds no metric; give one of them")
    rows = compare_runs(runs, until or (), last=last)
    wanted = None if metrics is None else [name.strip() for name in metrics.split(",")]
    rows.require(wanted or ())
    if sort is not None:
        rows = rows.sorted(sort)
    shown = None if wanted is None else _with_goals(wanted, rows, until or ())
    if paired_:
        _print_paired(rows, _differences(rows, wanted or ["GlobalAcc", "AvgRare"]), json_)
    elif json_:
        console.print_json(rows.as_json())
    elif format_ is None:
        console.out.print(text_table(rows, shown, console.out.width))
    else:
        write = {Format.md: markdown, Format.csv: csv, Format.latex: latex}
        console.write(write[format_](rows, shown))


def _with_goals(wanted: list[str], rows: Comparison, until: Sequence[str]) -> list[str]:
    """Add the columns of each goal, unless the user has chosen some of them."""
    metrics = dict.fromkeys(column for row in rows for column in row.goal_columns())
    shown = list(wanted)
    for goal in map(Goal.parse, until):
        own = [metric for metric in metrics if metric.endswith(f" to {goal_words(goal)}")]
        if not set(own) & set(shown):
            shown += own
    return shown


def _differences(rows: Comparison, metrics: list[str]) -> list[PairedDifference]:
    first, *others = rows
    if not others:
        raise BadInput(
            f"--paired needs two rows, and there is only {first.name}; name another folder"
        )
    return [paired(first, other, metric) for other in others for metric in metrics]


def _print_paired(rows: Comparison, found: list[PairedDifference], json_: bool) -> None:
    if json_:
        console.print_json({"paired": [asdict(own) for own in found], "notes": list(rows.notes)})
        return
    console.out.print(paired_table(found))
    for note in rows.notes:
        console.out.print(note, markup=False, highlight=False)
