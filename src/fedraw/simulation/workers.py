"""Worker processes: how they start, and that they never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

from fedraw.errors import BadInput

# Workers start from nothing: a forked copy of a process that runs torch may deadlock.
CONTEXT = multiprocessing.get_context("spawn")


def end_with_parent() -> None:
    """End this worker the moment its parent is gone, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("end_with_parent is for worker processes")

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches every process of a terminal; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def cannot_load(name: str, problem: BaseException) -> BadInput:
    """What a worker raises if it cannot import or unpickle what the parent sent it."""
    return BadInput(
        f"a worker process cannot load {name} ({type(problem).__name__}: {problem}); define it in "
        "a module that can be imported, or use the inline executor"
    )
