"""The fedraw command: wiring, and how failures are told.

Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fedraw
from fedraw.cli import console
from fedraw.cli.audit import audit
from fedraw.cli.compare import compare
from fedraw.cli.data import data
from fedraw.cli.demo import demo
from fedraw.cli.new import new
from fedraw.cli.report import report
from fedraw.cli.reproduce import reproduce
from fedraw.cli.run import run
from fedraw.cli.watch import watch
from fedraw.errors import BadInput, FedrawError, Interrupted

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, run, compare, audit, report, watch, reproduce, new):
    app.command()(command)
app.add_typer(data)


def print_version(wanted: bool) -> None:
    if wanted:
        print(fedraw.__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Asynchronous federated learning that keeps rare labels."""


def main() -> None:
    """Run the command; a user's mistake gets a message, never a traceback."""
    try:
        app()
    except BadInput as mistake:
        _fail(str(mistake), 2)
    except Interrupted as stop:
        _fail(f"{stop}; continue with --resume", 130)
    except FedrawError as failure:
        _fail(str(failure), 1)
    except OSError as failure:
        _fail(f"{failure.filename or 'a file'}: {failure.strerror or failure}", 1)


def _fail(message: str, code: int) -> None:
    console.err.print(f"fedraw: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
