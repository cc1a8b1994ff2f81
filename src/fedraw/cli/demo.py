"""`fedraw demo`: run eleven methods on embedded data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.cli.options import Jobs, Json
from fedraw.errors import Interrupted
from fedraw.eventlog.compare import compare
from fedraw.experiment.cells import Cell, cores, run_cells
from fedraw.experiment.demo import conclusion, demo_specs
from fedraw.experiment.log_records import row_name
from fedraw.experiment.options import Options
from fedraw.pages.html import write_page
from fedraw.report.page import render, write_curves
from fedraw.report.report_data import read_report_data
from fedraw.report.tables import text_table


def demo(
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="Folder for the runs; an earlier demo in it is replaced."),
    ] = Path("runs/demo"),
    jobs: Jobs = None,
    json_: Json = False,
) -> None:
    """Show silent rarity failure and its cure: eleven methods on digits, three seeds, a report."""
    cells = [
        Cell(spec, seed, out / row_name(spec.strategy) / f"seed-{seed}")
        for spec in demo_specs()
        for seed in spec.run.seeds
    ]
    begun = time.perf_counter()
    try:
        with console.cell_progress(cells, jobs or cores()) as progress:
            rows = compare(run_cells(cells, Options("batched", force=True), jobs, progress))
    except Interrupted:  # a demo has no --resume: it begins anew
        raise typer.Abort from None
    page = out / "report.html"
    folders = [out / row_name(spec.strategy) for spec in demo_specs()]
    lead = conclusion(rows)
    data = read_report_data(folders)
    write_page(
        page,
        render(data, title="Silent rarity failure, and its cure", lead=lead, command="fedraw demo"),
    )
    write_curves(data, out / "curves.svg")
    if json_:
        console.print_json(rows.as_json())
        return
    console.out.print(text_table(rows, width=console.out.width))
    console.out.print(lead)
    seconds = time.perf_counter() - begun
    console.say(f"{len(cells)} runs in {seconds:.0f} s on {jobs or cores()} cores; report: {page}")
