"""Runs a command, and turns its errors into messages and exit codes.

Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Annotated, NoReturn

import click
import typer

import fedraw
from fedraw.cli import console
from fedraw.cli.commands import CommandGroup
from fedraw.errors import BadInput, FedrawError, Interrupted
from fedraw.experiment.interrupts import INTERRUPTED

app = typer.Typer(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Errors of the operating system that another path would have avoided.
_WRONG_PATH = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EPERM,
    errno.EROFS,
}


def print_version(wanted: bool) -> None:
    """Print the version and exit, if `--version` is given."""
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


def run_command() -> None:
    """Run the command line of this process, and exit with the right code."""
    _repair_streams()
    try:
        code = app(prog_name="fedraw", standalone_mode=False)
        console.write("")  # flush
        if code == INTERRUPTED:  # Ctrl-C, which typer catches without a message
            _fail("interrupted", INTERRUPTED)
    except click.exceptions.Abort:
        _fail("interrupted", INTERRUPTED)
    except click.ClickException as mistake:
        usage = io.StringIO()
        mistake.show(usage)
        for line in usage.getvalue().splitlines():
            console.say(line)
        _end(mistake.exit_code)
    except BadInput as mistake:
        _fail(str(mistake), 2)
    except Interrupted as stop:
        _fail(f"{stop}; continue with --resume", INTERRUPTED)
    except FedrawError as failure:
        _fail(str(failure), 1)
    except BrokenPipeError:  # the reader has seen enough, as in `fedraw … | head`
        _end(1)
    except OSError as failure:
        _fail(f"{_file_name(failure)}: {failure.strerror or failure}", exit_code(failure))
    _end(code if isinstance(code, int) else 0)


def _repair_streams() -> None:
    """Let every message be written, whatever the standard streams of the process are.

    Output to a closed stream is discarded. Characters that an encoding such as ASCII does not have
    are written as escape sequences.
    """
    # In this order, each stream gets its usual descriptor, and no file of a run gets it by chance.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def exit_code(failure: OSError) -> int:
    """Return 2 if another path would have helped, and 1 if the machine failed, as with a full disk.

    >>> exit_code(FileNotFoundError(errno.ENOENT, "")), exit_code(OSError(errno.ENOSPC, ""))
    (2, 1)
    """
    return 2 if failure.errno in _WRONG_PATH else 1


def _file_name(failure: OSError) -> str:
    """Return the file that an error is about.

    Closing a file that could not be written fails again, without a file name, and hides the first
    error, so earlier errors are searched too.
    """
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) and cause.filename is not None:
            return os.fsdecode(cause.filename)
        cause = cause.__context__
    return "a file"


def _fail(message: str, code: int) -> NoReturn:
    console.say(f"fedraw: {message}")
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process; a closed standard output causes no further error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
