"""Execution of a plan: finished runs are kept, stopped ones resume, a failure ends no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedraw.errors import BadInput, FedrawError, Interrupted
from fedraw.experiment.cells import Cell, CellProgress, run_cells
from fedraw.experiment.interrupts import terminate_as_ctrl_c
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.runner import Result
from fedraw.experiment.spec import Spec
from fedraw_studies.cells import CellFiles, CellRecord, record_of
from fedraw_studies.plan import Planned
from fedraw_studies.requirements import Machine

_DENSE = ("linear", "mlp")

# Called with a run's number in the plan, and its record or the error that ended it.
Done = Callable[[int, CellRecord | FedrawError | OSError], None]


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and why."""

    planned: Planned
    why: str


@dataclass(frozen=True)
class Workspace:
    """The folder of finished cells, and the folder of runs that are under way."""

    cells: CellFiles
    runs: Path

    def folder(self, planned: Planned) -> Path:
        """Return the run folder of a planned run."""
        return self.runs / planned.name


def unfinished(plan: Sequence[Planned], work: Workspace, force: bool = False) -> list[Planned]:
    """Return the runs without a cell; a damaged one raises BadInput, or counts with `force`."""
    result = []
    for planned in plan:
        try:
            if work.cells.read(planned.name) is None:
                result.append(planned)
        except BadInput:
            if not force:
                raise
            result.append(planned)
    return result


def damaged(plan: Sequence[Planned], work: Workspace) -> list[str]:
    """Say what is wrong with the damaged cells of a plan."""
    found = []
    for planned in plan:
        try:
            work.cells.read(planned.name)
        except BadInput as problem:
            found.append(str(problem))
    return found


def run_plan(
    plan: Sequence[Planned],
    work: Workspace,
    machine: Machine,
    *,
    jobs: int | None = None,
    force: bool = False,
    progress: CellProgress | None = None,
    done: Done | None = None,
) -> list[FailedRun]:
    """Run a plan, write each cell as soon as its run is finished, and return what failed.

    A run that was stopped resumes where it was; with `force` it starts again.
    """
    failures: list[FailedRun] = []

    def finish(number: int, result: Result | FedrawError | OSError) -> None:
        planned = plan[number]
        outcome: CellRecord | FedrawError | OSError
        if isinstance(result, Result):
            outcome = _store(planned, work)
        else:
            failures.append(FailedRun(planned, str(result)))
            outcome = result
        if done is not None:
            done(number, outcome)

    specs = [machine.localised(planned.spec) for planned in plan]
    cells = [
        Cell(spec, planned.seed, work.folder(planned), _executor(spec))
        for spec, planned in zip(specs, plan, strict=True)
    ]
    options = Options(data_root=machine.root, resume=not force, force=force)
    try:
        with terminate_as_ctrl_c():
            run_cells(cells, options, jobs, progress, finish)
    except KeyboardInterrupt:  # between two runs; within one it is Interrupted already
        raise Interrupted("interrupted between two runs") from None
    finally:
        _remove_empty(work.runs)
    return failures


def clear_finished(plan: Sequence[Planned], work: Workspace) -> None:
    """Remove run folders whose cell was written just before the process ended."""
    for planned in plan:
        if work.cells.path(planned.name).exists() and work.folder(planned).exists():
            shutil.rmtree(work.folder(planned), ignore_errors=True)


def _executor(spec: Spec) -> ExecutorKind:
    """Train many clients of a small dense network at once: the same bytes, sooner."""
    quick = spec.training.model in _DENSE and spec.training.device == "cpu"
    return "batched" if quick else "inline"


def _store(planned: Planned, work: Workspace) -> CellRecord:
    record = record_of(planned, work.folder(planned))
    work.cells.write(record)
    shutil.rmtree(work.folder(planned), ignore_errors=True)
    return record


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
