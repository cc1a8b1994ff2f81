"""The entry point of the fedraw command.

It imports nothing of fedraw until Ctrl-C is taken care of.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def dying_on_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once, as long as there is nothing to save or to clean up.

    Loading modules takes a second or two, and an exception in the middle of an import would end in
    a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_IGN:  # as in a background job, which Ctrl-C must not reach
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def main() -> None:
    """Run the command; a user's mistake gets a message, never a traceback."""
    with dying_on_ctrl_c():
        from fedraw.cli.app import run_command

    run_command()
