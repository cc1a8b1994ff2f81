"""Where words go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
