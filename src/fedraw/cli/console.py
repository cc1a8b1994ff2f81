"""Where words go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedraw.data.progress import Progress as DataProgress
from fedraw.data.releases import size_text
from fedraw.experiments.cells import Cell, CellProgress

out = Console()
err = Console(stderr=True)


def say(message: str) -> None:
    """To standard error, as it is: paths may hold anything."""
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """One JSON document and nothing else on standard output."""
    print(json.dumps(document, indent=2))


@contextmanager
def cell_progress(cells: Sequence[Cell]) -> Iterator[CellProgress]:
    """One bar over all cells on standard error, only where someone watches."""
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

        def tell(number: int, events: int) -> None:
            done[number] = events
            bar.update(task, completed=sum(done))

        yield tell


@contextmanager
def task_progress() -> Iterator[DataProgress]:
    """One bar for each thing that is being done, on standard error, only where someone watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None, amount="")
            bars.update(
                tasks[what], completed=done, total=total or None, amount=_amount(done, total)
            )

        yield tell


def _amount(done: int, total: int) -> str:
    # No data set has a million images, and few downloads have less than a million bytes.
    if max(done, total) >= 1_000_000:
        return f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return f"{done:,}/{total:,}" if total else f"{done:,}"
