"""Many runs at once: cells (method x seed) are independent, so each gets a process of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput, Interrupted, WorkerDied
from fedraw.experiments.interrupts import terminate_as_ctrl_c
from fedraw.experiments.run import How, Result, refuse_existing, run_seed
from fedraw.experiments.spec import Spec
from fedraw.simulation.workers import CONTEXT, end_with_parent


class Cell(NamedTuple):
    spec: Spec
    seed: int
    folder: Path | None = None  # None: nothing is written


# Told a cell's number and how many of its events are done.
CellProgress = Callable[[int, int], None]
TELL_EVERY_SECONDS = 0.1


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_cells(
    cells: Sequence[Cell], how: How, jobs: int | None = None, progress: CellProgress | None = None
) -> list[Result]:
    """Run all cells, `jobs` at a time (by default one per core); results in the cells' order."""
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs} must be at least 1")
    for cell in cells:
        refuse_existing(cell.folder, how)
    jobs = min(jobs or cores(), len(cells))
    # With workers of their own, runs go one after the other.
    if jobs == 1 or how.crew.has_workers:
        return _one_by_one(cells, how, progress)
    return _side_by_side(cells, how, jobs, progress)


def _one_by_one(cells: Sequence[Cell], how: How, progress: CellProgress | None) -> list[Result]:
    def tell(number: int) -> Callable[[int], None] | None:
        return None if progress is None else lambda events: progress(number, events)

    return [
        run_seed(cell.spec, cell.seed, cell.folder, how=replace(how, progress=tell(number)))
        for number, cell in enumerate(cells)
    ]


def _side_by_side(
    cells: Sequence[Cell], how: How, jobs: int, progress: CellProgress | None
) -> list[Result]:
    # A bare byte: workers look at it on every event, and an Event would take a lock each time.
    told, stop = CONTEXT.SimpleQueue(), CONTEXT.RawValue("b", 0)
    listener = threading.Thread(target=_listen, args=(told, progress), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(jobs, CONTEXT, _become_worker, (told, stop))
    try:
        with terminate_as_ctrl_c():
            jobs_to_do = enumerate(cells)
            return _results([pool.submit(_run_cell, n, cell, how) for n, cell in jobs_to_do])
    except KeyboardInterrupt:
        stop.value = 1
        pool.shutdown(wait=True, cancel_futures=True)
        raise Interrupted("interrupted; each run stopped where it was") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        told.put(None)
        listener.join()


def _results(futures: Iterable[Future[Result]]) -> list[Result]:
    try:
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise WorkerDied(
            "a process that ran a cell died; was it killed, or out of memory?"
        ) from None


def _listen(told: Any, progress: CellProgress | None) -> None:
    while (message := told.get()) is not None:
        if progress is not None:
            progress(*message)


# What a worker process has from its parent: a queue for progress, a byte that asks it to stop.
_from_parent: tuple[Any, Any] = (None, None)


def _become_worker(told: Any, stop: Any) -> None:
    global _from_parent  # noqa: PLW0603 - a process pool has no other place for it
    end_with_parent()
    _from_parent = (told, stop)


def _run_cell(number: int, cell: Cell, how: How) -> Result:
    told, stop = _from_parent
    wanted, last = cell.spec.run.events, 0.0

    def tell(events: int) -> None:
        nonlocal last
        if events >= wanted or time.monotonic() > last + TELL_EVERY_SECONDS:
            last = time.monotonic()
            told.put((number, events))

    how = replace(how, progress=tell, stop=lambda: bool(stop.value))
    return run_seed(cell.spec, cell.seed, cell.folder, how=how)
