"""Runs the cells (method x seed) of a command under one progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedraw.cli.console import progress_bar
from fedraw.experiments.names import row_name
from fedraw.experiments.run import Result, run_seed
from fedraw.experiments.spec import Spec


class Cell(NamedTuple):
    spec: Spec
    seed: int
    folder: Path


def run_cells(cells: Sequence[Cell]) -> list[Result]:
    total = sum(cell.spec.run.events for cell in cells)
    results = []
    with progress_bar(total) as bar:
        (task,) = bar.task_ids
        done = 0
        for cell in cells:
            name = f"{row_name(cell.spec.strategy)}, seed {cell.seed}"
            bar.update(task, description=name)

            def advance(_: int, events: int, before: int = done) -> None:
                bar.update(task, completed=before + events)

            results.append(run_seed(cell.spec, cell.seed, cell.folder, progress=advance))
            done += cell.spec.run.events
    return results
