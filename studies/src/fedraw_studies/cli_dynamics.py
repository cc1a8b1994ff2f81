"""The training-free part of fedraw reproduce: who reaches the buffer, over many seeds."""

from __future__ import annotations

import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import typer

from fedraw.cli import console
from fedraw.errors import Interrupted
from fedraw.experiment.cells import cores, run_cells
from fedraw.experiment.options import Options
from fedraw_studies.dynamics import as_json, dynamics_cells, findings, paper_artefacts
from fedraw_studies.dynamics_document import markdown


def reproduce_dynamics(seeds: int, jobs: int | None, out: Path, quiet: bool) -> dict[str, Any]:
    """Run all of it, write dynamics.md and dynamics.json, print the first unless `quiet`."""
    begun = time.perf_counter()
    tables = paper_artefacts()
    cells = dynamics_cells(tables, seeds)
    try:
        with console.cell_progress(cells) as progress:
            results = run_cells(cells, Options(), jobs, progress)
    except (Interrupted, KeyboardInterrupt):
        console.say("fedraw: interrupted; nothing of dynamics was written, so run it again")
        raise typer.Exit(130) from None
    found = findings(tables, cells, results)
    seconds = time.perf_counter() - begun
    origin = (
        f"`fedraw reproduce dynamics --seeds {seeds}`, {date.today()}: {len(cells)} runs in "
        f"{seconds:.0f} s, {min(jobs or cores(), len(cells))} processes on {cores()} cores."
    )
    text, document = markdown(tables, found, origin), as_json(found, seeds)
    out.mkdir(parents=True, exist_ok=True)
    (out / "dynamics.md").write_text(text, encoding="utf-8")
    (out / "dynamics.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.say(f"dynamics written to {out}")
    if not quiet:
        console.write(text)
    return document


def saved_dynamics(out: Path, seeds: int) -> dict[str, Any] | None:
    """What an earlier call has written for as many seeds; None if there is nothing of the kind."""
    try:
        document = json.loads((out / "dynamics.json").read_text(encoding="utf-8"))
        wanted = sum(len(row.metrics) for table in paper_artefacts() for row in table.rows)
        same = document["seeds"] == seeds and len(document["rows"]) == wanted
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(document) if same else None
