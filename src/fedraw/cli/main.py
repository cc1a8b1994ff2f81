"""The entry point of the fedraw command.

It imports nothing of fedraw until Ctrl-C is taken care of.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command; a user's mistake gets a message, never a traceback."""
    # Loading the modules takes a second or two. Nothing has been done by then that Ctrl-C could
    # interrupt, so it simply ends the process.
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:  # as in a background job, which Ctrl-C must not reach
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedraw.cli.app import run_command

    signal.signal(signal.SIGINT, handler)
    run_command()
