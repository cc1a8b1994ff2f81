"""Runs many cells at once. A cell is one spec with one seed, and runs in its own process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput, FedrawError, Interrupted, MissingExtra, WorkerDied
from fedraw.eventlog.records import Record
from fedraw.experiment.checkpoints import Checkpoints
from fedraw.experiment.interrupts import terminate_as_ctrl_c
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.result import SeedResult
from fedraw.experiment.run_folder import RunFolder
from fedraw.experiment.runner import refuse_existing, run_seed
from fedraw.experiment.spec import Spec
from fedraw.simulation.executors.workers import (
    CONTEXT,
    death_notice,
    end_with_parent,
    pack,
    starting_workers,
    unpack,
)


class Cell(NamedTuple):
    """One seed of a spec."""

    spec: Spec
    seed: int
    folder: Path | None = None  # None: nothing is written
    executor: ExecutorKind | None = None  # None: that of the options


# Called with a cell's number and the number of its events that are done.
CellProgress = Callable[[int, int], None]
# Called with a cell's number and its result, or the error that ended it.
CellDone = Callable[[int, SeedResult | FedrawError | OSError], None]
# Called with a cell's number and a record of its log.
CellObserver = Callable[[int, Record], None]
REPORT_EVERY_SECONDS = 0.1


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_cells(
    cells: Sequence[Cell],
    options: Options,
    jobs: int | None = None,
    progress: CellProgress | None = None,
    done: CellDone | None = None,
    parts: Parts | None = None,
    observe: CellObserver | None = None,
) -> list[SeedResult]:
    """Run all cells and return their results in the cells' order.

    Args:
        cells: The cells to run.
        options: How to run them; a cell may have its own executor.
        jobs: The number of cells that run at a time; by default one per core.
        progress: Called with a cell's number and the number of its events that are done.
        done: Called with a cell's number and its result or error. With it, a cell that fails does
            not end the others, and no results are returned.
        parts: The user's own Python objects, in place of names in the specs.
        observe: Called in this process with a cell's number and each record of its log.

    """
    if jobs is not None and jobs < 1:
        raise BadInput(f"jobs = {jobs} must be at least 1")
    for cell in cells:
        refuse_existing(cell.folder, options)
    kept: dict[int, SeedResult] = {}

    def keep(number: int, result: SeedResult | FedrawError | OSError) -> None:
        if not isinstance(result, SeedResult):
            raise result
        kept[number] = result

    jobs = min(jobs or cores(), len(cells))
    # Runs that have their own workers follow one another.
    if jobs <= 1 or options.has_workers:
        _run_sequentially(cells, options, _Listeners(progress, observe, done or keep), parts)
    else:
        _run_in_parallel(cells, options, jobs, _Listeners(progress, observe, done or keep), parts)
    return [kept[number] for number in sorted(kept)]


def resume_lines(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a line about each cell with a folder: where its run will continue."""
    for spec, seed, folder, _ in cells:
        if folder is None or not folder.exists():
            continue
        event = Checkpoints(folder).event
        if RunFolder(folder).is_finished:
            yield f"seed {seed}: finished already, so its result is kept"
        elif event is None:
            yield f"seed {seed}: starts from the beginning, because it has no checkpoint"
        else:
            yield f"seed {seed}: resumes after {event:,} of {spec.run.events:,} arrivals"


class _Listeners(NamedTuple):
    """The callbacks that receive the progress, the records and the results of the cells."""

    progress: CellProgress | None
    observe: CellObserver | None
    done: CellDone

    def one_at_a_time(self) -> _Listeners:
        """Return callbacks that wait for each other, for calls from several threads."""
        lock = threading.Lock()

        def locked(call: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
            def wait_and_call(number: int, content: Any) -> None:
                with lock:
                    call(number, content)

            return wait_and_call

        progress, observe = (
            None if call is None else locked(call) for call in (self.progress, self.observe)
        )
        return _Listeners(progress, observe, locked(self.done))


def _run_sequentially(
    cells: Sequence[Cell], options: Options, listeners: _Listeners, parts: Parts | None
) -> None:
    def bound(call: Callable[[int, Any], None] | None, number: int) -> Callable[[Any], None] | None:
        return None if call is None else partial(call, number)

    finished = 0
    try:
        for number, cell in enumerate(cells):
            own = replace(
                options,
                executor=cell.executor or options.executor,
                progress=bound(listeners.progress, number),
                observe=bound(listeners.observe, number),
            )
            run = partial(run_seed, cell.spec, cell.seed, cell.folder, parts, own)
            listeners.done(number, _outcome(run))
            finished += 1
    except KeyboardInterrupt:  # while a run starts or ends; otherwise it raises Interrupted itself
        how_far = f"with {finished} of {len(cells)} runs finished"
        alone = "before the run was finished"
        raise Interrupted(f"interrupted {how_far if len(cells) > 1 else alone}") from None


def _run_in_parallel(
    cells: Sequence[Cell],
    options: Options,
    jobs: int,
    listeners: _Listeners,
    parts: Parts | None,
) -> None:
    # A plain byte, because workers read it on every event, and an Event would take a lock each
    # time.
    queue, stop = CONTEXT.SimpleQueue(), CONTEXT.RawValue("b", 0)
    failures: list[Exception] = []
    listeners = listeners.one_at_a_time()
    listener = threading.Thread(
        target=_listen, args=(queue, stop, listeners, failures), daemon=True
    )
    listener.start()
    setup = _WorkerSetup(queue, stop, _packed(parts), listeners.observe is not None)
    pool = ProcessPoolExecutor(jobs, CONTEXT, _become_worker, (setup,))
    workers: list[BaseProcess] = []
    try:
        with terminate_as_ctrl_c():
            with starting_workers():  # submitting starts the processes
                waiting = {
                    pool.submit(_run_cell, n, cell, options): n for n, cell in enumerate(cells)
                }
            workers += CONTEXT.active_children()
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    listeners.done(waiting.pop(future), _outcome(future.result))
    except BrokenProcessPool:
        pool.shutdown()  # waits for the exit codes
        raise WorkerDied(death_notice("a process that ran a cell", _first_death(workers))) from None
    except (KeyboardInterrupt, Interrupted):
        stop.value = 1
        pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise failures[0] from None
        raise Interrupted("interrupted; each run stopped where it was") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        queue.put(None)
        listener.join()
    if failures:
        raise failures[0]


def _packed(parts: Parts | None) -> bytes | None:
    if parts is None or not parts.names:
        return None
    _ = parts.sources  # computed here, because a worker may not have the source
    try:
        return pack(parts, "what was given in Python")
    except BadInput:
        for name, part in parts.brought():
            pack(part, f"{name} = {parts.names[name]}")  # the message names the part
        raise


def _first_death(workers: Sequence[BaseProcess]) -> int | None:
    """Return the exit code of the process that broke its pool, which ended the others itself."""
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    return next((code for code in codes if code != -signal.SIGTERM), -signal.SIGTERM)


def _outcome(result: Callable[[], SeedResult]) -> SeedResult | FedrawError | OSError:
    """Return the result of a cell or its error; raise errors that concern all cells."""
    try:
        return result()
    except (Interrupted, WorkerDied, MissingExtra):
        raise
    except (FedrawError, OSError) as failure:
        return failure


def _listen(queue: Any, stop: Any, listeners: _Listeners, failures: list[Exception]) -> None:
    """Pass the workers' messages to the listeners; an error of a listener stops all cells."""
    while (message := queue.get()) is not None:
        number, content = message
        call: Any = listeners.progress if isinstance(content, int) else listeners.observe
        try:
            if call is not None and not failures:
                call(number, content)
        except Exception as problem:  # the main thread raises it
            failures.append(problem)
            stop.value = 1


class _WorkerSetup(NamedTuple):
    """What a worker process receives from its parent."""

    queue: Any  # for progress and records
    stop: Any  # a byte that is 1 when the worker must stop
    parts: bytes | None
    observed: bool  # whether the parent wants the records


_setup = _WorkerSetup(None, None, None, False)


def _become_worker(setup: _WorkerSetup) -> None:
    global _setup  # noqa: PLW0603 - a process pool has no other place for it
    end_with_parent()
    _setup = setup


def _run_cell(number: int, cell: Cell, options: Options) -> SeedResult:
    queue, stop, packed, observed = _setup
    wanted, last = cell.spec.run.events, 0.0

    def report(events: int) -> None:
        nonlocal last
        if events >= wanted or time.monotonic() > last + REPORT_EVERY_SECONDS:
            last = time.monotonic()
            queue.put((number, events))

    options = replace(
        options,
        executor=cell.executor or options.executor,
        progress=report,
        stop=lambda: bool(stop.value),
        observe=(lambda record: queue.put((number, record))) if observed else None,
    )
    parts = None if packed is None else unpack(packed, "the parts that were given in Python")
    return run_seed(cell.spec, cell.seed, cell.folder, parts, options)
