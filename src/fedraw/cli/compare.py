"""`fedraw compare`: one table from many runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.errors import BadInput
from fedraw.eventlog import compare as comparison
from fedraw.report.tables import csv, latex, markdown, text_table


class Format(StrEnum):
    """Output formats besides the table for the terminal."""

    md = "md"
    csv = "csv"
    latex = "latex"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="One or more folders with runs.")
    ],
    format_: Annotated[
        Format | None, typer.Option("--format", help="Print the table in this format.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare runs in one table, with mean ± sd over seeds; the best values are marked."""
    if json_ and format_ is not None:
        raise BadInput("--json and --format exclude each other; give one")
    rows = comparison.compare(runs)
    if json_:
        console.print_json(comparison.as_json(rows))
    elif format_ is None:
        console.out.print(text_table(rows))
    else:
        write = {Format.md: markdown, Format.csv: csv, Format.latex: latex}
        console.write(write[format_](rows))
