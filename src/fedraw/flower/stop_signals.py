"""Stop signals: handled at once while the server waits, otherwise at its next wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """Raised out of a wait; a BaseException, so that it is not taken for a failed message."""


class StopSignals:
    """Holds back Flower's own signal handlers until the federation is on disk.

    Flower's handlers end the process at once, in the middle of whatever it does. Here a signal
    raises Stopped while the process is `waiting` (for the SuperLink, or for the next turn). At
    other times the next wait raises it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waiting = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # In a simulation the ServerApp runs in a thread, which gets no signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In this block, a signal raises Stopped at once."""
        self._waiting = True
        try:
            # A crashed simulation leaves the thread of its ServerApp behind.
            if self.received is not None or not threading.main_thread().is_alive():
                raise Stopped
            yield
        finally:
            self._waiting = False

    def pass_on(self) -> None:
        """Raise the signal again for the handler that was there before."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        if self._waiting:
            raise Stopped
