"""The command `fedraw`, called by tests, and a small spec to give it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from fedraw.cli.main import main

SMALL = """
version = 1
[partition]
clients = 8
rare_labels = [9]
clients_per_common_label = 5
[strategy]
name = "fedraw"
buffer = 4
[training]
epochs = 1
[run]
events = 30
evaluate_every = 10
seeds = [1, 2]
"""

# Warnings that Python does not show to the users of a program.
NOT_SHOWN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def fedraw(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, as if the machine had one core.

    This saves the seconds that a new process takes to import torch. An exception that the command
    does not handle reaches the test.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    code: object = 0
    with ExitStack() as stack:
        stack.callback(lambda: [signal.signal(n, handler) for n, handler in handlers.items()])
        stack.enter_context(chdir(cwd))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.resetwarnings()
        for ignored in NOT_SHOWN:
            warnings.simplefilter("ignore", ignored)
        stack.enter_context(patch.object(sys, "argv", ["fedraw", *map(str, arguments)]))
        stack.enter_context(patch.object(os, "sched_getaffinity", lambda _: {0}, create=True))
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["fedraw", *map(str, arguments)], code, text(out), text(err))


def text(stream: io.TextIOWrapper) -> str:
    """What was written to a stream."""
    stream.seek(0)
    return stream.read()


def fedraw_process(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "fedraw", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )
