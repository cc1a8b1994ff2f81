"""Where words go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

out = Console()
err = Console(stderr=True)


def print_json(document: Any) -> None:
    """One JSON document and nothing else on standard output."""
    print(json.dumps(document, indent=2))


@contextmanager
def progress_bar(total: int) -> Iterator[Progress]:
    """A bar on standard error, only where someone watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        bar.add_task("events", total=total)
        yield bar
