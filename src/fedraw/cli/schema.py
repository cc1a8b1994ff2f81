"""`fedraw schema`: the JSON Schema of a SPEC.toml, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: print.")
    ] = None,
) -> None:
    """Print the JSON Schema of a SPEC.toml, by which editors complete and check its keys."""
    from fedraw.experiment.schema import spec_schema, write_schema

    if out is None:
        console.print_json(spec_schema())
    else:
        write_schema(out)
        console.say(f"{out} written")
