"""The progress of runs: how long they still take, and a line that shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

from fedraw.core.text import duration


class RemainingTime:
    """Estimates how long pieces of work still take that some processes do one after another.

    The pace is measured from the first report of each piece on, so neither the start of a process
    nor work that was done earlier distorts it. There is no estimate until enough was measured.

    >>> seconds = iter([0, 0, 50, 50])
    >>> three_runs = RemainingTime([100, 100, 100], jobs=2, clock=lambda: next(seconds))
    >>> for number, events in [(0, 0), (1, 0), (0, 50), (1, 50)]:
    ...     three_runs.report(number, events)
    >>> three_runs.seconds()  # 50 for the two that are running, then 100 for the third
    150.0
    """

    # An estimate needs this share of the work and these seconds measured, or else many seconds.
    LEAST_SHARE, LEAST_SECONDS, MANY_SECONDS = 0.02, 3.0, 30.0

    def __init__(
        self,
        amounts: Sequence[float],
        jobs: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._amounts = amounts
        self._jobs = max(jobs, 1)
        self._clock = clock
        self._first: dict[int, tuple[float, float]] = {}  # when a piece first reported, and what
        self._last: dict[int, tuple[float, float]] = {}

    @property
    def done(self) -> float:
        """How much of all pieces is done."""
        return sum(amount for _, amount in self._last.values())

    def report(self, number: int, amount: float) -> None:
        """Note how much of a piece is done."""
        self._last[number] = (self._clock(), amount)
        self._first.setdefault(number, self._last[number])

    def seconds(self) -> float | None:
        """Return the seconds until all pieces are done, or None if it is too early to tell."""
        pairs = [(self._first[number], last) for number, last in self._last.items()]
        spent = sum(last[0] - first[0] for first, last in pairs)
        measured = sum(last[1] - first[1] for first, last in pairs)
        little = measured < self.LEAST_SHARE * sum(self._amounts)
        if not measured or spent < (self.MANY_SECONDS if little else self.LEAST_SECONDS):
            return None
        ends = [0.0] * self._jobs  # when each process has done its share, in units of work
        running = sorted(self._last, key=self._left)
        for number in [*running, *(n for n in range(len(self._amounts)) if n not in self._last)]:
            ends[ends.index(min(ends))] += self._left(number)
        return max(ends) * spent / measured

    def __str__(self) -> str:
        seconds = self.seconds()
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _left(self, number: int) -> float:
        return max(0.0, self._amounts[number] - self._last.get(number, (0.0, 0.0))[1])


# The line is written at most this often, in seconds.
_EVERY = 0.2
_WIDTH = 30


class ProgressLine:
    """One line on standard error that is rewritten while runs go on; silent in a file or a pipe."""

    def __init__(self, events: Sequence[int], jobs: int = 1, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = is_watched(self._stream)
        self._remaining = RemainingTime(events, jobs)
        self._total = sum(events)
        self._next = 0.0
        self._longest = 0

    def __call__(self, number: int, events: int) -> None:
        """Note that a run has done so many of its events."""
        self._remaining.report(number, events)
        done, now = self._remaining.done, time.monotonic()
        if self._shown and (now >= self._next or done >= self._total):
            self._next = now + _EVERY
            self._write(self._text(done))

    def close(self) -> None:
        """Leave the line, if there is one."""
        if self._longest:
            self._stream.write("\n")
            self._stream.flush()
        self._longest = 0

    def _text(self, done: float) -> str:
        filled = int(_WIDTH * min(1.0, done / self._total))
        bar = "█" * filled + "·" * (_WIDTH - filled)
        return f"{bar} {done:,.0f}/{self._total:,} events  {self._remaining}".rstrip()

    def _write(self, text: str) -> None:
        self._longest = max(self._longest, len(text))
        self._stream.write("\r" + text.ljust(self._longest))
        self._stream.flush()


def is_watched(stream: IO[str]) -> bool:
    """Whether somebody sees the stream while it is written: it is a terminal or a notebook's."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")
