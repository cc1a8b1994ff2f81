"""Runs the fedraw command inside a process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from fedraw.cli import main as cli
from stress.forked import Send


def command(*words: str) -> Callable[[Send], int]:
    """Return a fedraw command as a function for a forked child; a refusal ends the child."""

    def work(send: Send) -> int:
        sys.argv = ["fedraw", *words]
        cli.main()
        return 0

    return work


def run_here(*words: str) -> None:
    """Run a command that must succeed in this process, which also imports its modules."""
    output, before = io.StringIO(), sys.argv
    try:
        with redirect_stdout(output), redirect_stderr(output):
            command(*words)(lambda message: None)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise AssertionError(f"fedraw {' '.join(words)}: {output.getvalue()}") from None
    finally:
        sys.argv = before
