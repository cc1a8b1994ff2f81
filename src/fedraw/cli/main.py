"""The entry point of the command `fedraw`.

It imports nothing of fedraw before Ctrl-C is handled.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exit_on_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process immediately, while there is nothing to save or clean up.

    Loading modules takes a second or two, and an exception in the middle of an import would end in
    a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_IGN:  # a background job, which Ctrl-C must not reach
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def main() -> None:
    """Run the command; a user's mistake leads to a message, never to a traceback."""
    with exit_on_ctrl_c():
        from fedraw.cli.app import run_command

    run_command()
