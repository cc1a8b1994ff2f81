"""Runs the seeds of a spec, each into its own folder, and resumes runs that were stopped."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedraw.core.collection import paused_collection
from fedraw.core.types import Vector
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.log_file import LogWriter, read_log, verify_log
from fedraw.eventlog.records import EndRecord, EvaluationRecord, Record, finding_record
from fedraw.eventlog.state import RunState
from fedraw.eventlog.summary import end_of_log
from fedraw.experiment.calibrating import calibrated
from fedraw.experiment.checkpoints import Checkpoints
from fedraw.experiment.conditions import founders
from fedraw.experiment.costs import CostMeter
from fedraw.experiment.evaluation import Evaluator
from fedraw.experiment.interrupts import deferred_interrupts
from fedraw.experiment.log_records import (
    claim_records,
    drift_records,
    happening_records,
    opening_records,
    start_record,
    step_record,
)
from fedraw.experiment.options import DEFAULTS, Options, Progress
from fedraw.experiment.parts import Parts
from fedraw.experiment.result import SeedResult
from fedraw.experiment.run_folder import RunFolder
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of
from fedraw.simulation.loop import Simulation, Stalled
from fedraw.storage.snapshot import CALIBRATED, saving_problem

# Events between two calls of a progress function.
PROGRESS_EVERY = 20


def refuse_existing(folder: Path | None, options: Options) -> None:
    """Refuse a folder that holds a run, unless the run is resumed or replaced."""
    if folder is None and options.resume:
        raise BadInput("only a run with a folder can be resumed; give the folder it was run in")
    if folder is not None and not (options.resume or options.force):
        RunFolder(folder).refuse_existing()


def run_seed(
    spec: Spec,
    seed: int,
    folder: Path | None = None,
    parts: Parts | None = None,
    options: Options = DEFAULTS,
) -> SeedResult:
    """Run one seed, and write its folder if one is given."""
    with paused_collection():
        scenario = Scenario.of(spec, seed, parts, options)
    if folder is not None and options.resume:
        finished = _finished(RunFolder(folder), scenario)
        if finished is not None:
            if options.progress is not None:
                options.progress(spec.run.events)
            return finished
    started, end = time.perf_counter(), None
    with executor_of(scenario, options) as executor:
        simulation = scenario.simulation(
            executor
        )  # refuses impossible settings before writing files
        with _recording(folder, scenario, simulation, options) as recorder:
            summary = _simulate(scenario, simulation, recorder, options).summary()
            model = simulation.state.model
            if folder is not None and recorder.log is not None:
                end, seconds = recorder.log.to_disk(), time.perf_counter() - started
                layout = scenario.setup.layout
                others = {CALIBRATED: recorder.calibrated}
                RunFolder(folder).write_results(summary, model, layout, seconds, end, others)
                Checkpoints(folder).remove()
        kept = recorder.kept
    layout = scenario.setup.layout
    name, cautions = summary["name"], scenario.cautions
    return SeedResult(name, seed, summary, model, folder, layout, kept, end, cautions)


def check_seed(spec: Spec, seed: int, folder: Path | None, options: Options) -> Scenario:
    """Do everything that `run_seed` does before its first event, without files and workers."""
    scenario = Scenario.of(spec, seed, options=options)
    here = replace(options, executor="inline") if options.has_workers else options
    with executor_of(scenario, here) as executor:
        simulation = scenario.simulation(executor)  # reads the trace, starts the strategy
    if folder is None or not options.resume:
        return scenario
    run_folder = RunFolder(folder)
    if _finished(run_folder, scenario) is None:
        checkpoint = Checkpoints(folder).read(type(simulation.state))
        if checkpoint is not None:
            verify_log(run_folder.log, checkpoint.log)
            run_folder.refuse_other_inputs(opening_records(scenario))
    return scenario


def _finished(run_folder: RunFolder, scenario: Scenario) -> SeedResult | None:
    """Return the verified result of a run that is already finished, otherwise None."""
    run_folder.refuse_other_spec(scenario.tables())
    if not run_folder.is_finished:
        return None
    summary, model = run_folder.read_results(scenario.setup.layout)
    run_folder.refuse_other_inputs(opening_records(scenario))
    layout, end = scenario.setup.layout, end_of_log(run_folder.log)
    return SeedResult(
        summary["name"], scenario.seed, summary, model, run_folder.path, layout, end=end
    )


@dataclass
class Recorder:
    """Adds the records of a run to its state and writes them to its log."""

    state: RunState
    log: LogWriter | None = None
    checkpoints: Checkpoints | None = None
    observe: Callable[[Record], None] | None = None
    memory: io.BytesIO | None = None  # the log of a run without a folder, if it is kept
    meter: CostMeter | None = None
    calibrated: Vector | None = None

    @property
    def kept(self) -> bytes | None:
        """The log that was kept in memory."""
        return None if self.memory is None else self.memory.getvalue()

    def note(self, record: Record) -> None:
        """Add one record."""
        if self.meter is not None:
            self.meter.observe(record)
            if isinstance(record, EvaluationRecord | EndRecord):
                record = replace(record, costs=self.meter.totals(record.time))
        self.state.apply(record)
        if self.log is not None:
            self.log.write(record)
        if self.observe is not None:
            self.observe(record)

    def note_all(self, records: Iterable[Record]) -> None:
        """Add several records."""
        for record in records:
            self.note(record)

    def note_opening(self, scenario: Scenario) -> None:
        """Add the records before the first arrival; skip those of clients if nothing reads them."""
        if self.log is not None or self.observe is not None or self.meter is not None:
            self.note_all(opening_records(scenario))
            return
        self.state.apply(start_record(scenario))
        self.state.add_founders(founders(scenario.clients.table, scenario.changes))
        self.note_all(claim_records(scenario))

    def checkpoint(self, simulation: Simulation) -> None:
        """Write a checkpoint if the run has a folder and its state can be written."""
        if self.log is None or self.checkpoints is None:
            return
        try:
            self.checkpoints.write(simulation, self.log.to_disk())
        except BadInput:
            raise
        except (TypeError, ValueError) as problem:  # a user's strategy has changed its state
            self.checkpoints = None
            warnings.warn(
                f"the state {type(simulation.state).__name__} cannot be saved at event "
                f"{simulation.timeline.event} ({problem}), so this run writes no further "
                "checkpoints; build the state from dataclasses, arrays and plain values",
                stacklevel=2,
            )


@contextmanager
def _recording(
    folder: Path | None, scenario: Scenario, simulation: Simulation, options: Options
) -> Iterator[Recorder]:
    """Record from the beginning, or restore the simulation and record from its checkpoint."""
    if folder is None:
        memory = io.BytesIO() if options.keep_log else None
        log = None if memory is None else LogWriter(memory)
        meter = scenario.cost_meter()
        recorder = Recorder(RunState(), log, None, options.observe, memory, meter)
        with paused_collection():
            recorder.note_opening(scenario)
        yield recorder
        return
    run_folder, checkpoints = RunFolder(folder), Checkpoints(folder)
    with run_folder.claimed(), ExitStack() as stack:
        _refuse_other_process(run_folder, scenario, options)
        checkpoint = checkpoints.read(type(simulation.state)) if options.resume else None
        if checkpoint is None:
            checkpoints.remove()
            log = stack.enter_context(run_folder.new_log(scenario.tables()))
            usable = _usable(checkpoints, scenario, simulation)
            recorder = Recorder(RunState(), log, usable, options.observe)
            recorder.meter = scenario.cost_meter()
            with paused_collection():
                recorder.note_opening(scenario)
        else:
            state, meter = RunState(), scenario.cost_meter()
            for record in read_log(run_folder.log, until=checkpoint.log):
                state.apply(record)
                if meter is not None:
                    meter.observe(record)
            run_folder.refuse_other_inputs(opening_records(scenario))
            log = stack.enter_context(run_folder.cut_log(checkpoint.log, scenario.tables()))
            recorder = Recorder(state, log, checkpoints, options.observe)
            recorder.meter = meter
            simulation.restore(checkpoint.saved)
        yield recorder


def _refuse_other_process(run_folder: RunFolder, scenario: Scenario, options: Options) -> None:
    """Refuse a run that another process wrote after the first check and before the lock."""
    if options.resume:
        run_folder.refuse_other_spec(scenario.tables())
        if run_folder.is_finished:
            raise BadInput(
                f"another process has just finished {run_folder.path}; give the command again"
            )
    elif not options.force:
        run_folder.refuse_existing()


def _usable(
    checkpoints: Checkpoints, scenario: Scenario, simulation: Simulation
) -> Checkpoints | None:
    """Return the checkpoints, or warn and return None if the strategy's state cannot be saved.

    Nobody trains where clients send sums. Such a run takes seconds, and its state has the message
    of every client, so it writes no checkpoints, and resuming it runs it again.
    """
    if scenario.strategy.needs.payload is not None:
        return None
    own = scenario.parts.strategy
    problem = None if own is None else saving_problem(simulation.state)
    if problem is None:
        return checkpoints
    warnings.warn(
        f"the state of {type(own).__name__} is not made of dataclasses, arrays and plain values "
        f"({problem}), so this run writes no checkpoints and cannot be resumed",
        stacklevel=2,
    )
    return None


def _simulate(
    scenario: Scenario, simulation: Simulation, recorder: Recorder, options: Options
) -> RunState:
    evaluate = None if scenario.trainer is None else Evaluator(scenario)
    wanted, every = scenario.spec.run.events, scenario.evaluate_every
    # A round in progress at the last event is finished, unless one of its clients keeps failing.
    limit = wanted + len(scenario.clients.table)
    event, ended = simulation.timeline.event, None
    with deferred_interrupts() as asked_to_stop:
        while event < wanted or (simulation.mid_round and event < limit):
            final = simulation.finished
            if final is not None:
                ended = final
                break
            try:
                step = simulation.step()
            except Stalled as stalled:
                recorder.note_all(happening_records(stalled.happened, event))
                ended = str(stalled)
                break
            recorder.note_all(happening_records(step.happened, event))
            event = step.event
            recorder.note(step_record(step))
            for doubt in step.doubts:
                recorder.note(finding_record(event, step.time, **doubt._asdict()))
            if scenario.drift is not None and event == scenario.drift.after:
                recorder.note_all(drift_records(scenario, event, step.time))
            is_last = event >= wanted or simulation.finished is not None
            if evaluate is not None and event % every == 0 and not is_last:
                recorder.note(evaluate(simulation))
            if event % PROGRESS_EVERY == 0:
                _report_progress(event, recorder, options.progress)
            if asked_to_stop() or (options.stop is not None and options.stop()):
                recorder.checkpoint(simulation)
                raise Interrupted(f"interrupted at event {event} of {wanted}")
            if recorder.checkpoints is not None and recorder.checkpoints.is_due:
                recorder.checkpoint(simulation)
    if evaluate is not None:
        recorder.calibrated = calibrated(scenario, simulation.state.model)
        recorder.note(evaluate(simulation, True, recorder.calibrated))
    recorder.note(EndRecord(event=event, time=simulation.timeline.now, reason=ended))
    _report_progress(wanted, recorder, options.progress)
    return recorder.state


def _report_progress(event: int, recorder: Recorder, progress: Progress | None) -> None:
    if recorder.log is not None:
        recorder.log.flush()
    if progress is not None:
        progress(event)
