"""`fedraw export`: export the series of runs to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from fedraw.cli import console
from fedraw.core.text import counted
from fedraw.export import TARGETS, export_runs


def export(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="One or more folders with runs.")
    ],
    to: Annotated[str, typer.Option(click_type=click.Choice(list(TARGETS)), help="The format.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="The folder to write to.")
    ] = Path("exported"),
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue until the runs are finished, or Ctrl-C.")
    ] = False,
) -> None:
    """Export evaluations, recall per label and arrivals to files, also while a run grows."""
    for run in export_runs(runs, TARGETS[to], out, follow=follow):
        state = "finished" if run.finished else "not finished"
        parts = [counted(run.evaluations, "evaluation")]
        if run.arrivals is not None:
            parts.append(counted(run.arrivals, "arrival"))
        console.say(f"{run.name} ({state}): {' and '.join(parts)} exported to {out}")
