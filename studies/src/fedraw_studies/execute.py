"""Runs a plan: what is finished is kept, what was begun goes on, what fails ends nothing else."""

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

# Told a run's number in the plan, and its record or what went wrong.
Told = Callable[[int, CellRecord | FedrawError | OSError], None]


@dataclass(frozen=True)
class Failure:
    planned: Planned
    why: str


@dataclass(frozen=True)
class Workshop:
    """Where finished cells are, and where runs are under way."""

    cells: CellFiles
    runs: Path

    def folder(self, planned: Planned) -> Path:
        return self.runs / planned.name


def unfinished(plan: Sequence[Planned], shop: Workshop, force: bool = False) -> list[Planned]:
    """Those of which there is no cell; a damaged one is refused, or with `force` run again."""
    result = []
    for planned in plan:
        try:
            if shop.cells.read(planned.name) is None:
                result.append(planned)
        except BadInput:
            if not force:
                raise
            result.append(planned)
    return result


def damaged(plan: Sequence[Planned], shop: Workshop) -> list[str]:
    """What is wrong with the cells of a plan."""
    found = []
    for planned in plan:
        try:
            shop.cells.read(planned.name)
        except BadInput as problem:
            found.append(str(problem))
    return found


def run_plan(
    plan: Sequence[Planned],
    shop: Workshop,
    machine: Machine,
    *,
    jobs: int | None = None,
    force: bool = False,
    progress: CellProgress | None = None,
    told: Told | None = None,
) -> list[Failure]:
    """Run all of it, writing each cell as it is finished; return what failed.

    A run that was stopped goes on where it was, or with `force` begins anew.
    """
    failures: list[Failure] = []

    def done(number: int, result: Result | FedrawError | OSError) -> None:
        planned = plan[number]
        came: CellRecord | FedrawError | OSError
        if isinstance(result, Result):
            came = _keep(planned, shop)
        else:
            failures.append(Failure(planned, str(result)))
            came = result
        if told is not None:
            told(number, came)

    specs = [machine.localised(planned.spec) for planned in plan]
    cells = [
        Cell(spec, planned.seed, shop.folder(planned), _executor(spec))
        for spec, planned in zip(specs, plan, strict=True)
    ]
    options = Options(data_root=machine.root, resume=not force, force=force)
    try:
        with terminate_as_ctrl_c():
            run_cells(cells, options, jobs, progress, done)
    except KeyboardInterrupt:  # between two runs; within one it is Interrupted already
        raise Interrupted("interrupted between two runs") from None
    finally:
        _remove_empty(shop.runs)
    return failures


def clear_finished(plan: Sequence[Planned], shop: Workshop) -> None:
    """Run folders that were left because the process ended between writing a cell and this."""
    for planned in plan:
        if shop.cells.path(planned.name).exists() and shop.folder(planned).exists():
            shutil.rmtree(shop.folder(planned), ignore_errors=True)


def _executor(spec: Spec) -> ExecutorKind:
    """Small dense networks train many clients at once: the same bytes, sooner."""
    quick = spec.training.model in _DENSE and spec.training.device == "cpu"
    return "batched" if quick else "inline"


def _keep(planned: Planned, shop: Workshop) -> CellRecord:
    record = record_of(planned, shop.folder(planned))
    shop.cells.write(record)
    shutil.rmtree(shop.folder(planned), ignore_errors=True)
    return record


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
