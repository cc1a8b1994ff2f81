"""Run many cells at once. A cell is one spec with one seed, and runs in a process of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput, FedrawError, Interrupted, MissingExtra, WorkerDied
from fedraw.experiment.interrupts import terminate_as_ctrl_c
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.runner import Result, refuse_existing, run_seed
from fedraw.experiment.spec import Spec
from fedraw.simulation.executors.workers import CONTEXT, end_with_parent, without_interrupts


class Cell(NamedTuple):
    """One seed of a spec."""

    spec: Spec
    seed: int
    folder: Path | None = None  # None: nothing is written
    executor: ExecutorKind | None = None  # if not that of the options


# Called with a cell's number and the number of its events that are done.
CellProgress = Callable[[int, int], None]
# Called with a cell's number and its result, or the error that ended it.
CellDone = Callable[[int, Result | FedrawError | OSError], None]
TELL_EVERY_SECONDS = 0.1


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_cells(
    cells: Sequence[Cell],
    options: Options,
    jobs: int | None = None,
    progress: CellProgress | None = None,
    done: CellDone | None = None,
) -> list[Result]:
    """Run all cells and return their results in the cells' order.

    Args:
        cells: What to run.
        options: How to run; a cell may have an executor of its own.
        jobs: How many cells run at a time; by default one per core.
        progress: Called with a cell's number and the number of its events that are done.
        done: Called with a cell's number and its result or error. With it, a cell that fails does
            not end the others, and no results are returned.

    """
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs} must be at least 1")
    for cell in cells:
        refuse_existing(cell.folder, options)
    kept: dict[int, Result] = {}

    def keep(number: int, result: Result | FedrawError | OSError) -> None:
        if not isinstance(result, Result):
            raise result
        kept[number] = result

    jobs = min(jobs or cores(), len(cells))
    # Runs that have workers of their own follow one another.
    if jobs <= 1 or options.has_workers:
        _one_by_one(cells, options, progress, done or keep)
    else:
        _side_by_side(cells, options, jobs, progress, done or keep)
    return [kept[number] for number in sorted(kept)]


def _one_by_one(
    cells: Sequence[Cell], options: Options, progress: CellProgress | None, done: CellDone
) -> None:
    def tell(number: int) -> Callable[[int], None] | None:
        return None if progress is None else lambda events: progress(number, events)

    try:
        for number, cell in enumerate(cells):
            executor = cell.executor or options.executor
            own = replace(options, executor=executor, progress=tell(number))
            run = partial(run_seed, cell.spec, cell.seed, cell.folder, options=own)
            done(number, _outcome(run))
    except KeyboardInterrupt:  # between two runs; a run handles its own interrupts
        raise Interrupted("interrupted between two runs") from None


def _side_by_side(
    cells: Sequence[Cell],
    options: Options,
    jobs: int,
    progress: CellProgress | None,
    done: CellDone,
) -> None:
    # A bare byte, because workers read it on every event, and an Event would take a lock each time.
    told, stop = CONTEXT.SimpleQueue(), CONTEXT.RawValue("b", 0)
    listener = threading.Thread(target=_listen, args=(told, progress), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(jobs, CONTEXT, _become_worker, (told, stop))
    try:
        with terminate_as_ctrl_c():
            with without_interrupts():  # submitting starts the processes
                waiting = {
                    pool.submit(_run_cell, n, cell, options): n for n, cell in enumerate(cells)
                }
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    done(waiting.pop(future), _outcome(future.result))
    except (KeyboardInterrupt, Interrupted):
        stop.value = 1
        pool.shutdown(wait=True, cancel_futures=True)
        raise Interrupted("interrupted; each run stopped where it was") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        told.put(None)
        listener.join()


def _outcome(result: Callable[[], Result]) -> Result | FedrawError | OSError:
    """The result of a cell, or its error; errors that concern all cells are raised."""
    try:
        return result()
    except BrokenProcessPool:
        raise WorkerDied(
            "a process that ran a cell died; was it killed, or out of memory?"
        ) from None
    except (Interrupted, WorkerDied, MissingExtra):
        raise
    except (FedrawError, OSError) as failure:
        return failure


def _listen(told: Any, progress: CellProgress | None) -> None:
    while (message := told.get()) is not None:
        if progress is not None:
            progress(*message)


# What a worker process gets from its parent: a queue for progress, and a byte that says stop.
_from_parent: tuple[Any, Any] = (None, None)


def _become_worker(told: Any, stop: Any) -> None:
    global _from_parent  # noqa: PLW0603 - a process pool has no other place for it
    end_with_parent()
    _from_parent = (told, stop)


def _run_cell(number: int, cell: Cell, options: Options) -> Result:
    told, stop = _from_parent
    wanted, last = cell.spec.run.events, 0.0

    def tell(events: int) -> None:
        nonlocal last
        if events >= wanted or time.monotonic() > last + TELL_EVERY_SECONDS:
            last = time.monotonic()
            told.put((number, events))

    executor = cell.executor or options.executor
    options = replace(options, executor=executor, progress=tell, stop=lambda: bool(stop.value))
    return run_seed(cell.spec, cell.seed, cell.folder, options=options)
