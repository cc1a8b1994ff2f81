"""Handles Ctrl-C and SIGTERM between two arrivals, never in the middle of one."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from fedraw.errors import Interrupted, ScriptInterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # the exit code of a command or a script that Ctrl-C ended


@contextmanager
def interrupting_the_script(folder: object) -> Iterator[None]:
    """Raise ScriptInterrupted for an interrupt; runs in a folder can be continued."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        _end_scripts_in_one_line()
        remedy = "" if folder is None else "; continue with resume=True"
        raise ScriptInterrupted(f"{str(stopped) or 'interrupted'}{remedy}") from None


def _end_scripts_in_one_line() -> None:
    """Let a ScriptInterrupted that nobody catches end the process without a traceback."""
    usual = sys.excepthook
    if getattr(usual, "ends_scripts", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, ScriptInterrupted):
            usual(kind, error, traceback)
            return
        print(error, file=sys.stderr)
        if not hasattr(sys, "ps1"):  # an interactive session goes on
            sys.exit(INTERRUPTED)

    hook.ends_scripts = True  # type: ignore[attr-defined]
    sys.excepthook = hook


@contextmanager
def terminate_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in the main thread; do nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop; a second Ctrl-C stops immediately.

    Signals reach the main thread only; in another thread the function always returns false.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
