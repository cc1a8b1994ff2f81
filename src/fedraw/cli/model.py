"""`fedraw model`: export the model of a run or a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.core.settings import one_of
from fedraw.export.model import CHOICES, export_model

model = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Export the model of a run or a server, even while it is running.",
)


@model.callback()
def _model() -> None:
    """Export the model of a run or a server, even while it is running."""


@model.command("export")
def export(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of a seed or of a server.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The file to write; its name ends in .safetensors.")
    ] = Path("model.safetensors"),
    which: Annotated[str, typer.Option(help=f"One of {', '.join(CHOICES)}.")] = "current",
    card: Annotated[bool, typer.Option(help="Also write a model card next to it.")] = True,
) -> None:
    """Write a model as safetensors, with its metrics, settings and labels in the header."""
    one_of("--which", which, CHOICES)
    chosen = next(choice for choice in CHOICES if choice == which)
    written = export_model(folder, out, chosen, card=card)
    console.say(f"written to {out}" + (f" and {written}" if card else ""))
