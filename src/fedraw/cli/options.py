"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedraw.errors import BadInput

DataRoot = Annotated[
    Path | None,
    typer.Option(envvar="FEDRAW_DATA", help="The data root: the folder with the public datasets."),
]
Jobs = Annotated[
    int | None,
    typer.Option("-j", "--jobs", help="Number of processes; by default one per core.", min=1),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def refuse_resume_and_force(resume: bool, force: bool) -> None:
    """Refuse options of which one continues a run and the other replaces it."""
    if resume and force:
        raise BadInput("--resume and --force exclude each other; give one")
