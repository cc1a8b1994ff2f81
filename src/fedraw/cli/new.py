"""`fedraw new`: write a commented spec to start from, and the schema by which editors read it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.errors import BadInput


def new(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The file to write.")],
) -> None:
    """Write a commented spec to start from, and beside it the schema that editors check it by."""
    from fedraw.experiment.schema import SCHEMA_FILE, write_schema

    template = files("fedraw.experiment").joinpath("template.toml").read_text(encoding="utf-8")
    try:
        with spec_file.open("x", encoding="utf-8") as file:
            file.write(f"#:schema ./{SCHEMA_FILE}\n{template}")
    except FileExistsError:
        raise BadInput(f"{spec_file} exists; choose another name, or delete the file") from None
    except OSError as problem:
        raise BadInput(
            f"cannot write {spec_file}: {problem.strerror}; choose another file"
        ) from None
    write_schema(spec_file.with_name(SCHEMA_FILE))
    console.say(f"{spec_file} written; run it with: fedraw run {spec_file}")
