"""`fedraw schema`: the JSON Schema of a SPEC.toml, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.storage.files import atomic_write

# The file beside a SPEC.toml that `fedraw new` names in its first line.
SCHEMA_FILE = "fedraw.schema.json"


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: print.")
    ] = None,
) -> None:
    """Print the JSON Schema of a SPEC.toml, by which editors complete and check its keys."""
    from fedraw.experiment.schema import spec_schema

    if out is None:
        console.print_json(spec_schema())
    else:
        write_schema(out)
        console.say(f"{out} written")


def write_schema(path: Path) -> None:
    """Write the schema to a file."""
    from fedraw.experiment.schema import spec_schema

    atomic_write(path, json.dumps(spec_schema(), indent=2).encode() + b"\n")
