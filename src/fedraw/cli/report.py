"""`fedraw report`: show many runs on one page, and write its figures for papers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.pages.html import write_page
from fedraw.report.figures import write_figures
from fedraw.report.page import render
from fedraw.report.report_data import read_report_data


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="One or more folders with runs.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write every figure to DIR, as SVG and PDF."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "fedraw report",
    last: Annotated[
        bool,
        typer.Option(
            "--last", help="Show the last model instead of the mean of the last five evaluations."
        ),
    ] = False,
) -> None:
    """Show runs on one page: a self-contained HTML file that opens offline."""
    data = read_report_data(runs, last=last)
    command = shlex.join(["fedraw", "report", *map(str, runs), "-o", str(out), *["--last"] * last])
    write_page(out, render(data, title=title, command=command))
    console.say(f"written to {out}")
    if figures is not None:
        written = write_figures(data, figures)
        console.say(f"{len(written)} figures written to {figures}")
