"""Output of the command: results to standard output, everything else to standard error.

This module makes all text safe for a terminal, because names and paths come from files that others
wrote.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedraw.core.text import printable
from fedraw.experiment.progress import RemainingTime

# Modules for progress bars are imported with the first bar, so that `fedraw --help` stays fast.
if TYPE_CHECKING:
    from fedraw.data.releases import Progress as DataProgress
    from fedraw.experiment.cells import Cell, CellProgress

# The keywords that messages of the library name, and the options that have another name.
_KEYWORD = re.compile(
    r"\b(resume|force|out|data_root|executor|address|times)=(True|\.\.\.|'[^']*')"
)
_OPTIONS = {"data_root": "data"}

# Without a terminal: the seconds before the first line about a slow task, and between lines.
FIRST_LINE_AFTER, LINE_EVERY = 10.0, 60.0


@contextmanager
def naming(stream: str) -> Iterator[None]:
    """Add the stream's name to a write error, such as a full disk or a closed pipe."""
    try:
        yield
    except OSError as problem:
        problem.filename = stream
        raise


class SafeConsole(Console):
    """A console that escapes all control characters except its own."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects as Rich does; an error names the stream."""
        with naming("standard error" if self.stderr else "standard output"):
            super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Rich does, with control characters escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


out = SafeConsole()
err = SafeConsole(stderr=True)


def as_options(message: str) -> str:
    """Write the keywords of Python that a message names as options of the command.

    >>> as_options("continue with resume=True, or choose another out=...")
    'continue with --resume, or choose another --out'
    >>> as_options("use executor='inline'; no cluster at address='10.0.0.1:6379'")
    "use --executor inline; no cluster at --address '10.0.0.1:6379'"
    """
    return _KEYWORD.sub(_as_option, message)


def _as_option(found: re.Match[str]) -> str:
    keyword, value = found.groups()
    option = f"--{_OPTIONS.get(keyword, keyword)}"
    if value in ("True", "..."):
        return option
    return f"{option} {value.strip(chr(39)) if value.strip(chr(39)).isalpha() else value}"


def say(message: str) -> None:
    """Print a message to standard error, with options in place of Python's keywords.

    Lines after the first are indented, so that a path with a line break cannot forge a message.
    """
    indented = as_options(message).replace("\n", "\n  ")
    err.print(indented, markup=False, highlight=False, soft_wrap=True, emoji=False)


def write(text: str) -> None:
    """Print text of several lines to standard output, such as a table for a file."""
    _write(printable(text))


def print_json(document: Any) -> None:
    """Print one JSON document, and nothing else, to standard output."""
    _write(json.dumps(document, indent=2) + "\n")


def _write(text: str) -> None:
    with naming("standard output"):
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def cell_progress(cells: Sequence[Cell], jobs: int = 1) -> Iterator[CellProgress]:
    """Show one progress bar for all cells on standard error, if that is a terminal.

    `jobs` is the number of cells that run at a time.
    """
    events = [cell.spec.run.events for cell in cells]
    remaining, total = RemainingTime(events, jobs), sum(events)
    data = ", ".join(dict.fromkeys(_data_name(cell) for cell in cells))
    what = f"{data}: {len(cells)} run{'s' if len(cells) > 1 else ''}"
    with _bars() as show:
        show(what, 0, total, f"0/{total:,} events", "")

        def update(number: int, events: int) -> None:
            remaining.report(number, events)
            done = remaining.done
            show(what, done, total, f"{done:,.0f}/{total:,} events", str(remaining))

        yield update


def _data_name(cell: Cell) -> str:
    """Return the name of a cell's data, which for a user's own file is the file's name."""
    data = cell.spec.data
    return data.name if data.path is None else Path(data.path).name


@contextmanager
def task_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[DataProgress]:
    """Show a progress bar for each task on standard error.

    If that is not a terminal, print a line about a slow task now and then.
    """
    tasks: dict[str, RemainingTime] = {}
    next_line = clock() + FIRST_LINE_AFTER
    with _bars() as show:

        def update(what: str, done: int, total: int) -> None:
            nonlocal next_line
            remaining = tasks.setdefault(what, RemainingTime([total], clock=clock))
            remaining.report(0, done)
            amount, left = _amount(done, total), str(remaining) if total else ""
            show(what, done, total, amount, left)
            if not err.is_terminal and clock() >= next_line:
                next_line = clock() + LINE_EVERY
                say(f"{what}: {amount}{left and f', {left}'}")

        yield update


@contextmanager
def _bars() -> Iterator[Callable[[str, float, float, str, str], None]]:
    """Yield a function that shows a bar: its name, amount done, total, and both as texts."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    fields = ("{task.fields[amount]}", "{task.fields[left]}")
    columns = (TextColumn("{task.description}"), BarColumn(), *map(TextColumn, fields))
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as screen:

        def show(what: str, done: float, total: float, amount: str, left: str) -> None:
            if what not in bars:
                bars[what] = screen.add_task(what, total=None, amount="", left="")
            known = total or None
            screen.update(bars[what], completed=done, total=known, amount=amount, left=left)

        yield show


def _amount(done: int, total: int) -> str:
    from fedraw.data.releases import size_text

    # A dataset has fewer than a million images, and most downloads have more than a million bytes.
    if max(done, total) >= 1_000_000:
        return f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return f"{done:,}/{total:,}" if total else f"{done:,}"
