"""Executes a plan: finished runs are kept, stopped runs resume, failures do not stop others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fedraw.data.catalog import refuse_missing
from fedraw.data.releases import Progress, data_root
from fedraw.errors import BadInput, FedrawError, Interrupted
from fedraw.experiment.cells import Cell, CellProgress, run_cells
from fedraw.experiment.interrupts import terminate_as_ctrl_c
from fedraw.experiment.loading import prepare, weights_file
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.result import SeedResult
from fedraw.experiment.sections import IMAGENET
from fedraw.experiment.spec import Spec
from fedraw.learning.device import device_of
from fedraw.storage.lock import LOCK, FolderLock
from fedraw_studies.artefacts import study_of
from fedraw_studies.cells import CellFiles, CellRecord, record_of
from fedraw_studies.plan import Planned

_DENSE = ("linear", "mlp")
_PUBLISHED = "resnet18"  # the weights, as 'fedraw data fetch' calls them

# Called with a run's number in the plan, and its record or error.
Done = Callable[[int, CellRecord | FedrawError | OSError], None]


@dataclass(frozen=True)
class Machine:
    """Data root, weights and device of this machine; they do not change the key of a run."""

    root: Path | None = None  # data root; default FEDRAW_DATA
    weights: Path | None = None  # in place of the published weights
    device: str = "cpu"

    def localised(self, spec: Spec) -> Spec:
        """Return the spec with the device and weights of this machine."""
        training = replace(spec.training, device=self.device)
        features = spec.features
        if self.weights is not None:
            own = str(self.weights.absolute())
            if features is not None and features.weights == IMAGENET:
                features = replace(features, weights=own)
            if training.weights == IMAGENET:
                training = replace(training, weights=own)
        return replace(spec, training=training, features=features)


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and why."""

    planned: Planned
    why: str


@dataclass(frozen=True)
class Workspace:
    """The files of finished runs, and the folder of unfinished runs."""

    cells: CellFiles
    runs: Path

    def folder(self, planned: Planned) -> Path:
        """Return the run folder of a planned run."""
        return self.runs / planned.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other reproductions, and leave the files of finished runs sorted.

        The folder of unfinished runs is removed at the end if it is empty.
        """
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as problem:
            why = f"{problem.filename}: {problem.strerror}"
            raise BadInput(f"cannot write to {why}; choose another --out") from None
        lock = FolderLock(self.runs, "wait for it, or choose another --out")
        try:
            self.cells.tidy()
            try:
                yield
            finally:
                self.cells.tidy()
        finally:
            if [path.name for path in self.runs.iterdir()] == [LOCK]:
                shutil.rmtree(self.runs)
            lock.close()


def unfinished(plan: Sequence[Planned], work: Workspace) -> list[Planned]:
    """Return the runs that are not finished; a damaged line of a file raises BadInput."""
    work.cells.refuse_damage()
    finished = work.cells.names()
    return [planned for planned in plan if planned.name not in finished]


def refuse_missing_data(
    to_run: Sequence[Planned], machine: Machine, dataless: Iterable[str]
) -> None:
    """Refuse a plan with a missing device or missing data, and say what can run without them."""
    if to_run:
        device_of(machine.device)
    missing: dict[str, str] = {}
    needing: dict[str, None] = {}
    looked_for = cache(_missing)
    for planned in to_run:
        spec = machine.localised(planned.spec)
        weights = (spec.features or spec.training).weights
        for name, why in looked_for(spec.data.name, weights, machine.root).items():
            missing.setdefault(name, why)
            needing.setdefault(planned.artefact)
    if not missing:
        return
    try:
        data_root(machine.root)
        reasons = "\n".join(dict.fromkeys(missing.values()))
    except BadInput as problem:  # without a data root, other reasons do not matter
        reasons = str(problem)
    able = dict.fromkeys(p.artefact for p in to_run if p.artefact not in needing)
    others = " ".join([*able, *dataless])
    raise BadInput(
        f"{reasons}\n"
        f"{', '.join(needing)} cannot run without {', '.join(missing)}: get the missing data with "
        f"'fedraw data fetch {' '.join(missing)} --data DIR' and give --data DIR; without them you "
        f"can run 'fedraw reproduce {others}', and everything on embedded data with --scale smoke"
    )


def prepare_all(specs: Iterable[Spec], root: Path | None, progress: Progress) -> None:
    """Decode images and compute features once, before processes need them."""
    kinds = {json.dumps([s.to_dict().get("data"), s.to_dict().get("features")]): s for s in specs}
    for spec in kinds.values():
        prepare(spec, root, progress)


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
    """Run a plan, store each run as soon as it is finished, and return the failures.

    A run that was stopped resumes where it was; with `force` it starts again.
    """
    failures: list[FailedRun] = []

    def finish(number: int, result: SeedResult | FedrawError | OSError) -> None:
        planned = plan[number]
        outcome: CellRecord | FedrawError | OSError
        if isinstance(result, SeedResult):
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
        raise Interrupted("interrupted while no run was in progress") from None
    return failures


def clear_finished(plan: Sequence[Planned], work: Workspace) -> None:
    """Remove run folders whose run was stored just before the process ended."""
    finished = work.cells.names()
    for planned in plan:
        if planned.name in finished and work.folder(planned).exists():
            shutil.rmtree(work.folder(planned), ignore_errors=True)


def _executor(spec: Spec) -> ExecutorKind:
    """Choose the batched executor for small dense networks: the same results, faster."""
    quick = spec.training.model in _DENSE and spec.training.device == "cpu"
    return "batched" if quick else "inline"


def _store(planned: Planned, work: Workspace) -> CellRecord:
    record = record_of(planned, work.folder(planned))
    work.cells.write(record, study_of(planned.artefact))
    shutil.rmtree(work.folder(planned), ignore_errors=True)
    return record


def _missing(dataset: str, weights: str | None, root: Path | None) -> dict[str, str]:
    """Return the missing data and the reasons, by the name for `fedraw data fetch`."""
    found: dict[str, str] = {}
    try:
        refuse_missing(dataset, root)
    except BadInput as problem:
        found[dataset] = str(problem)
    try:
        if weights is not None and not (path := weights_file(weights, root)).is_file():
            found[_PUBLISHED] = f"the weights {path} do not exist; give another file with --weights"
    except BadInput as problem:
        found[_PUBLISHED] = str(problem)
    return found
