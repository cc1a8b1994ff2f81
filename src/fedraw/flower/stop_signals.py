"""An operator's wish to stop, heard at once while waiting and in between otherwise."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """Raised out of a wait. No Exception, so that nobody takes it for a failed message."""


class StopSignals:
    """Holds back Flower's own signal handlers until the federation is safely on disk.

    Flower's handlers leave at once, in the middle of whatever was being done. While `waiting` (for
    the SuperLink, for the next turn) a signal raises Stopped; at other times the next wait does.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waiting = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # In a simulation the ServerApp has a thread of its own, and signals are not its business.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiting = True
        try:
            # A simulation that has crashed leaves the thread of its ServerApp behind.
            if self.received is not None or not threading.main_thread().is_alive():
                raise Stopped
            yield
        finally:
            self._waiting = False

    def pass_on(self) -> None:
        """Let whoever was responsible before do the rest."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        if self._waiting:
            raise Stopped
