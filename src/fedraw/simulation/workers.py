"""Worker processes: how they start, and that they never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, from their first moment on.

    Ctrl-C goes to every process of a terminal. A worker that is still importing its modules would
    answer with a traceback, so it inherits a mask that blocks the signal. In this process Ctrl-C
    waits until all of them have started: one that is started by half would fail with a traceback.
    """
    asked = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()  # others have no handlers
    handler = signal.signal(signal.SIGINT, lambda *_: asked.set()) if is_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if asked.is_set():
        signal.raise_signal(signal.SIGINT)


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches every process of a terminal; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def cannot_load(name: str, problem: BaseException) -> BadInput:
    """What a worker raises if it cannot import or unpickle what the parent sent it."""
    return BadInput(
        f"a worker process cannot load {name} ({type(problem).__name__}: {problem}); define it in "
        "a module that can be imported, or use the inline executor"
    )
