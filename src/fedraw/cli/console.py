"""Output of the command: results to standard output, everything else to standard error.

All text is made safe for a terminal here, because names and paths come from files that others
wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedraw.core.text import printable

# What only a progress bar needs is imported with the first one, so `fedraw --help` stays quick.
if TYPE_CHECKING:
    from rich.progress import TaskID

    from fedraw.data.root import Progress as DataProgress
    from fedraw.experiment.cells import Cell, CellProgress


@contextmanager
def naming(stream: str) -> Iterator[None]:
    """Add the stream's name to an error of writing, such as a full disk or a closed pipe."""
    try:
        yield
    except OSError as problem:
        problem.filename = stream
        raise


class SafeConsole(Console):
    """A console that prints no control characters but its own."""

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


def say(message: str) -> None:
    """Print a message to standard error.

    Lines after the first are indented, so that a path with a line break cannot forge a message.
    """
    indented = message.replace("\n", "\n  ")
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
def cell_progress(cells: Sequence[Cell]) -> Iterator[CellProgress]:
    """Show one progress bar for all cells on standard error, if that is a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    done = [0] * len(cells)
    total = sum(cell.spec.run.events for cell in cells)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(f"{len(cells)} runs, events", total=total)

        def update(number: int, events: int) -> None:
            done[number] = events
            bar.update(task, completed=sum(done))

        yield update


@contextmanager
def task_progress() -> Iterator[DataProgress]:
    """Show a progress bar for each task on standard error, if that is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None, amount="")
            bars.update(
                tasks[what], completed=done, total=total or None, amount=_amount(done, total)
            )

        yield update


def _amount(done: int, total: int) -> str:
    from fedraw.data.releases import size_text

    # A dataset has less than a million images, and most downloads have more than a million bytes.
    if max(done, total) >= 1_000_000:
        return f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return f"{done:,}/{total:,}" if total else f"{done:,}"
