"""The progress of runs: an estimate of the remaining time, and a progress line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

from fedraw.core.text import duration


class RemainingTime:
    """Estimates the remaining time of tasks that `jobs` processes work through.

    The pace is measured from the first report of each task on, so neither the start of a process
    nor earlier work distorts it. There is no estimate until enough has been measured.

    >>> seconds = iter([0, 0, 50, 50])
    >>> three_runs = RemainingTime([100, 100, 100], jobs=2, clock=lambda: next(seconds))
    >>> for number, events in [(0, 0), (1, 0), (0, 50), (1, 50)]:
    ...     three_runs.report(number, events)
    >>> three_runs.seconds()  # 50 for the two that are running, then 100 for the third
    150.0
    """

    # An estimate needs this share of the work and LEAST_SECONDS, or else MANY_SECONDS.
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
        self._first: dict[
            int, tuple[float, float]
        ] = {}  # time and amount of each task's first report
        self._last: dict[int, tuple[float, float]] = {}

    @property
    def done(self) -> float:
        """The amount of work that is done."""
        return sum(amount for _, amount in self._last.values())

    def report(self, number: int, amount: float) -> None:
        """Record how much of a task is done."""
        self._last[number] = (self._clock(), amount)
        self._first.setdefault(number, self._last[number])

    def seconds(self) -> float | None:
        """Return the seconds until all tasks are done, or None if it is too early to estimate."""
        pairs = [(self._first[number], last) for number, last in self._last.items()]
        spent = sum(last[0] - first[0] for first, last in pairs)
        measured = sum(last[1] - first[1] for first, last in pairs)
        little = measured < self.LEAST_SHARE * sum(self._amounts)
        if not measured or spent < (self.MANY_SECONDS if little else self.LEAST_SECONDS):
            return None
        ends = [0.0] * self._jobs  # when each process finishes, in units of work
        running = sorted(self._last, key=self._left)
        for number in [*running, *(n for n in range(len(self._amounts)) if n not in self._last)]:
            ends[ends.index(min(ends))] += self._left(number)
        return max(ends) * spent / measured

    def __str__(self) -> str:
        seconds = self.seconds()
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _left(self, number: int) -> float:
        return max(0.0, self._amounts[number] - self._last.get(number, (0.0, 0.0))[1])


# Minimum seconds between two updates of the line.
_EVERY = 0.2
_WIDTH = 30


class ProgressLine:
    """A line on standard error that is rewritten during runs; silent if it is a file or a pipe."""

    def __init__(self, events: Sequence[int], jobs: int = 1, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = is_interactive(self._stream)
        self._remaining = RemainingTime(events, jobs)
        self._total = sum(events)
        self._next = 0.0
        self._longest = 0

    def __call__(self, number: int, events: int) -> None:
        """Record the number of events that a run has done, and update the line."""
        self._remaining.report(number, events)
        done, now = self._remaining.done, time.monotonic()
        if self._shown and (now >= self._next or done >= self._total):
            self._next = now + _EVERY
            self._write(self._text(done))

    def close(self) -> None:
        """End the line, if there is one."""
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


def is_interactive(stream: IO[str]) -> bool:
    """Return whether the stream is a terminal or a notebook's output."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")
