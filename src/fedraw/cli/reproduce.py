"""fedraw reproduce: the paper's artefacts again, theirs beside ours."""

from __future__ import annotations

import json
import time
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.errors import BadInput, Interrupted, nearest
from fedraw.experiments.cells import cores, run_cells
from fedraw.experiments.dynamics import as_json, dynamics_cells, findings, paper_artefacts
from fedraw.experiments.run import How
from fedraw.report.dynamics import markdown

KNOWN = ("dynamics",)


def reproduce(
    artefacts: Annotated[
        list[str], typer.Argument(metavar="ARTEFACT…", help=f"Of these: {', '.join(KNOWN)}.")
    ],
    seeds: Annotated[int, typer.Option(help="How many seeds, from 1 on.", min=1)] = 30,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to use; by default one per core.", min=1)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for dynamics.md and dynamics.json.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce the paper: theirs beside ours. dynamics: who reaches the buffer, no training."""
    for name in artefacts:
        if name not in KNOWN:
            raise BadInput(f"unknown artefact {name!r}; {nearest(name, KNOWN)}")
    begun = time.perf_counter()
    tables = paper_artefacts()
    cells = dynamics_cells(tables, seeds)
    try:
        with console.cell_progress(cells) as progress:
            results = run_cells(cells, How(), jobs, progress)
    except Interrupted:
        console.say("fedraw: interrupted; nothing was written, so run it again")
        raise typer.Exit(130) from None
    found = findings(tables, cells, results)
    seconds = time.perf_counter() - begun
    origin = (
        f"`fedraw reproduce dynamics --seeds {seeds}`, {date.today()}: {len(cells)} runs in "
        f"{seconds:.0f} s, {min(jobs or cores(), len(cells))} processes on {cores()} cores."
    )
    text, document = markdown(tables, found, origin), as_json(found, seeds)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "dynamics.md").write_text(text, encoding="utf-8")
        (out / "dynamics.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        console.say(f"written to {out}")
    if json_:
        console.print_json(document)
    else:
        print(text, end="")
