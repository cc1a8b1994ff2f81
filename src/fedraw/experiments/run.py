"""One spec, one folder per seed; a run that was stopped goes on where it was."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from fedraw.core.types import Vector
from fedraw.data.dataset import Dataset
from fedraw.disk.event_log import EventLog, Record, doubt_record, inferred_record, read_log
from fedraw.disk.snapshot import can_be_saved, nbytes
from fedraw.errors import BadInput, Interrupted
from fedraw.experiments.checkpoint import Checkpoints
from fedraw.experiments.clients import Partition
from fedraw.experiments.crew import Crew, executor_of
from fedraw.experiments.folder import RunFolder
from fedraw.experiments.interrupts import deferred_interrupts
from fedraw.experiments.log_records import (
    arrival_record,
    claim_records,
    drift_records,
    joined_records,
    start_record,
)
from fedraw.experiments.names import row_name
from fedraw.experiments.scenario import Parts, Scenario
from fedraw.experiments.source import Where
from fedraw.experiments.spec import Spec
from fedraw.experiments.summary import Summary
from fedraw.simulation.loop import Simulation
from fedraw.strategies.protocol import Strategy

if TYPE_CHECKING:
    from fedraw.learning.models import ModelFactory

# Told how many events are done, now and then.
Progress = Callable[[int], None]
PROGRESS_EVERY = 20


@dataclass(frozen=True, eq=False)
class Result:
    """What one seed came to."""

    name: str
    seed: int
    summary: dict[str, Any]
    model: Vector
    folder: Path | None = None


@dataclass(frozen=True)
class How:
    """How to run, which never changes what comes out."""

    crew: Crew = field(default_factory=Crew)  # who trains
    where: Where = field(default_factory=Where)  # the data root
    resume: bool = False
    force: bool = False
    progress: Progress | None = None
    stop: Callable[[], bool] | None = None  # asked after every event; Ctrl-C is heeded anyway


def run(
    spec: Spec,
    *,
    out: Path | str | None = None,
    how: How | None = None,
    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    partition: Partition | None = None,
    model: ModelFactory | None = None,
    strategy: Strategy[Any] | None = None,
) -> list[Result]:
    """Run every seed of the spec; with `out`, into the folders `out/seed-N`.

    `data`, `partition`, `model` (a function of input shape and classes that returns a torch module)
    and `strategy` take the place of what the spec names.
    """
    how = how or How()
    parts = Parts(data, partition, model, strategy)
    folders = [None if out is None else Path(out) / f"seed-{seed}" for seed in spec.run.seeds]
    for folder in folders:
        refuse_existing(folder, how)
    pairs = zip(spec.run.seeds, folders, strict=True)
    return [run_seed(spec, seed, folder, parts, how) for seed, folder in pairs]


def refuse_existing(folder: Path | None, how: How) -> None:
    if folder is None and how.resume:
        raise BadInput("only a run with a folder can be resumed; give the folder it was run in")
    if folder is not None and not (how.resume or how.force):
        RunFolder(folder).refuse_existing()


def run_seed(
    spec: Spec,
    seed: int,
    folder: Path | None = None,
    parts: Parts | None = None,
    how: How | None = None,
) -> Result:
    """Run one seed, and write its folder if one is given."""
    how = how or How()
    spec = replace(spec, run=replace(spec.run, seeds=(seed,)))
    scenario = Scenario.of(spec, seed, parts, how.where)
    layout = None if scenario.trainer is None else scenario.trainer.layout
    if folder is not None and how.resume:
        RunFolder(folder).refuse_other_spec(scenario.tables())
        if RunFolder(folder).is_finished:
            summary, model = RunFolder(folder).read_results(layout)
            RunFolder(folder).refuse_other_inputs(_opening(scenario))
            return Result(summary["name"], seed, summary, model, folder)
    started = time.perf_counter()
    with executor_of(scenario, how.crew) as executor:
        simulation = scenario.simulation(executor)  # refuses the impossible before files are made
        with _recording(folder, scenario, simulation, how) as recorder:
            summary = _simulate(scenario, simulation, recorder, how).as_dict()
            model = simulation.state.model
            if folder is not None and recorder.log is not None:
                end, seconds = recorder.log.to_disk(), time.perf_counter() - started
                RunFolder(folder).write_results(summary, model, layout, seconds, end)
                Checkpoints(folder).remove()
    return Result(summary["name"], seed, summary, model, folder)


def check_seed(spec: Spec, seed: int, folder: Path | None, how: How) -> Scenario:
    """Do all that `run_seed` does before its first event, except for writing and for workers."""
    spec = replace(spec, run=replace(spec.run, seeds=(seed,)))
    scenario = Scenario.of(spec, seed, where=how.where)
    with executor_of(scenario, None if how.crew.has_workers else how.crew) as executor:
        simulation = scenario.simulation(executor)  # reads the trace, starts the strategy
    if folder is None or not how.resume:
        return scenario
    run_folder = RunFolder(folder)
    run_folder.refuse_other_spec(scenario.tables())
    if run_folder.is_finished:
        run_folder.read_results(None if scenario.trainer is None else scenario.trainer.layout)
        run_folder.refuse_other_inputs(_opening(scenario))
    elif (checkpoint := Checkpoints(folder).read(type(simulation.state))) is not None:
        for _ in read_log(run_folder.log, until=checkpoint.log):
            pass
        run_folder.refuse_other_inputs(_opening(scenario))
    return scenario


@dataclass
class Recorder:
    """Where the records of a run go, and what they come to."""

    summary: Summary
    log: EventLog | None = None
    checkpoints: Checkpoints | None = None

    def note(self, record: Record) -> None:
        self.summary.observe(record)
        if self.log is not None:
            self.log.write(record)

    def note_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.note(record)

    def checkpoint(self, simulation: Simulation) -> None:
        if self.log is not None and self.checkpoints is not None:
            self.checkpoints.write(simulation, self.log.to_disk())


@contextmanager
def _recording(
    folder: Path | None, scenario: Scenario, simulation: Simulation, how: How
) -> Iterator[Recorder]:
    """From the beginning, or from the last checkpoint, to which `simulation` is then set."""
    if folder is None:
        recorder = Recorder(Summary())
        recorder.note_all(_opening(scenario))
        yield recorder
        return
    run_folder, checkpoints = RunFolder(folder), Checkpoints(folder)
    with run_folder.claimed(), ExitStack() as stack:
        _refuse_what_happened_meanwhile(run_folder, scenario, how)
        checkpoint = checkpoints.read(type(simulation.state)) if how.resume else None
        if checkpoint is None:
            checkpoints.remove()
            log = stack.enter_context(run_folder.new_log(scenario.tables()))
            recorder = Recorder(Summary(), log, _usable(checkpoints, scenario, simulation))
            recorder.note_all(_opening(scenario))
        else:
            summary = Summary.of(read_log(run_folder.log, until=checkpoint.log))
            run_folder.refuse_other_inputs(_opening(scenario))
            log = stack.enter_context(run_folder.cut_log(checkpoint.log, scenario.tables()))
            recorder = Recorder(summary, log, checkpoints)
            simulation.restore(checkpoint.saved)
        yield recorder


def _refuse_what_happened_meanwhile(run_folder: RunFolder, scenario: Scenario, how: How) -> None:
    """What another process wrote between the first look at a folder and the moment it is ours."""
    if how.resume:
        run_folder.refuse_other_spec(scenario.tables())
        if run_folder.is_finished:
            raise BadInput(
                f"another process has just finished {run_folder.path}; give the command again"
            )
    elif not how.force:
        run_folder.refuse_existing()


def _usable(
    checkpoints: Checkpoints, scenario: Scenario, simulation: Simulation
) -> Checkpoints | None:
    """None, with a warning, for a user's own strategy whose state cannot be written."""
    own = scenario.parts.strategy
    if own is None or can_be_saved(simulation.state):
        return checkpoints
    warnings.warn(
        f"the state of {type(own).__name__} is not made of dataclasses, arrays and plain values, "
        "so this run writes no checkpoints and cannot be resumed",
        stacklevel=2,
    )
    return None


def _opening(scenario: Scenario) -> Iterator[Record]:
    yield start_record(scenario, row_name(scenario.spec.strategy, scenario.strategy))
    yield from joined_records(scenario)
    yield from claim_records(scenario)


def _simulate(scenario: Scenario, simulation: Simulation, recorder: Recorder, how: How) -> Summary:
    evaluate = _evaluation(scenario)
    wanted, every = scenario.spec.run.events, scenario.spec.run.evaluate_every
    # A round that is under way at the last event is finished, unless someone in it keeps failing.
    limit = wanted + len(scenario.clients.table)
    event = simulation.timeline.event
    with deferred_interrupts() as asked_to_stop:
        while event < wanted or (simulation.mid_round and event < limit):
            step = simulation.step()
            event = step.event
            recorder.note(arrival_record(step))
            recorder.note_all(doubt_record(doubt, event, step.time) for doubt in step.doubts)
            recorder.note_all(drift_records(scenario, event, step.time))
            if event % every == 0 and event < wanted:
                recorder.note_all(evaluate(simulation, False))
            if event % PROGRESS_EVERY == 0:
                _tell(event, recorder, how.progress)
            if asked_to_stop() or (how.stop is not None and how.stop()):
                recorder.checkpoint(simulation)
                raise Interrupted(f"interrupted at event {event} of {wanted}")
            if recorder.checkpoints is not None and recorder.checkpoints.is_due:
                recorder.checkpoint(simulation)
    recorder.note_all(evaluate(simulation, True))
    recorder.note({"kind": "end", "event": event, "time": simulation.timeline.now})
    _tell(wanted, recorder, how.progress)
    return recorder.summary


def _tell(event: int, recorder: Recorder, progress: Progress | None) -> None:
    if recorder.log is not None:
        recorder.log.flush()
    if progress is not None:
        progress(event)


def _evaluation(scenario: Scenario) -> Callable[[Simulation, bool], Iterable[Record]]:
    """Records of what the model can do; none in a training-free run."""
    if scenario.trainer is None:
        return lambda simulation, final: ()
    from fedraw.experiments.evaluation import Evaluator

    evaluator = Evaluator(scenario)

    def evaluate(simulation: Simulation, final: bool) -> Iterable[Record]:
        event, version = simulation.timeline.event, simulation.state.version
        model = simulation.state.model
        stamp = {"kind": "evaluation", "event": event, "version": version}
        # In copies of the model: what this method costs a server beside the model itself.
        memory = round(nbytes(simulation.state) / model.nbytes, 2)
        scorer = simulation.scorer
        known = inferred_record(None if scorer is None else scorer.inferred_labels())
        return [{**stamp, **evaluator(model, final), "server_models": memory, **known}]

    return evaluate
