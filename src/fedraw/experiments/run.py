"""One spec, one folder per seed: spec, event log, model, timing, summary."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiments.clients import Partition
from fedraw.experiments.event_log import (
    EventLog,
    Record,
    arrival_record,
    claim_records,
    joined_records,
    start_record,
)
from fedraw.experiments.names import row_name
from fedraw.experiments.scenario import Parts, Scenario
from fedraw.experiments.spec import Spec
from fedraw.experiments.summary import Summary
from fedraw.experiments.toml import to_toml
from fedraw.simulation.loop import Simulation
from fedraw.strategies.strategy import Strategy

# Told the seed and how many events of it are done, now and then.
Progress = Callable[[int, int], None]
PROGRESS_EVERY = 20


@dataclass(frozen=True, eq=False)
class Result:
    """What one seed came to."""

    name: str
    seed: int
    summary: dict[str, Any]
    model: Vector
    folder: Path | None = None


def run(
    spec: Spec,
    *,
    out: Path | str | None = None,
    replace_existing: bool = False,
    progress: Progress | None = None,
    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    partition: Partition | None = None,
    model: Any = None,
    strategy: Strategy[Any] | None = None,
) -> list[Result]:
    """Run every seed of the spec; with `out`, into the folders `out/seed-N`.

    `data`, `partition`, `model` (a function of input shape and classes that returns a torch module)
    and `strategy` take the place of what the spec names.
    """
    parts = Parts(data, partition, model, strategy)
    folders = {s: None if out is None else Path(out) / f"seed-{s}" for s in spec.run.seeds}
    for folder in folders.values():
        if folder is not None and not replace_existing:
            refuse_existing(folder)
    return [run_seed(spec, s, folders[s], parts, progress) for s in spec.run.seeds]


def run_seed(
    spec: Spec,
    seed: int,
    folder: Path | None = None,
    parts: Parts | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run one seed, and write its folder if one is given."""
    spec = replace(spec, run=replace(spec.run, seeds=(seed,)))
    scenario = Scenario.of(spec, seed, parts)
    simulation = scenario.simulation()  # refuses what is impossible before a file is touched
    started = time.perf_counter()
    with _opened_log(folder, scenario) as log:
        summary = _simulate(scenario, simulation, log, progress)
    document = summary.as_dict()
    result = Result(document["name"], seed, document, simulation.state.model, folder)
    if folder is not None:
        layout = None if scenario.trainer is None else scenario.trainer.layout
        _write_results(folder, result, layout, time.perf_counter() - started)
    return result


def refuse_existing(folder: Path) -> None:
    """Nothing is overwritten unless it was asked for."""
    if (folder / "events.jsonl").exists():
        raise BadInput(
            f"{folder} already holds a run; choose another --out, or replace it with --force"
        )


def _simulate(
    scenario: Scenario, simulation: Simulation, log: EventLog | None, progress: Progress | None
) -> Summary:
    summary = Summary()

    def note(record: Record) -> None:
        summary.observe(record)
        if log is not None:
            log.write(record)

    note(start_record(scenario, row_name(scenario.spec.strategy, scenario.strategy)))
    for record in (*joined_records(scenario), *claim_records(scenario)):
        note(record)
    evaluate = _evaluation(scenario)
    wanted, every = scenario.spec.run.events, scenario.spec.run.evaluate_every
    # A round that is under way at the last event is finished, unless someone in it keeps failing.
    limit = wanted + len(scenario.clients.table)
    event = 0
    while event < wanted or (simulation.mid_round and event < limit):
        step = simulation.step()
        event = step.event
        note(arrival_record(step))
        if event % every == 0 and event < wanted:
            for record in evaluate(event, simulation.state.version, simulation.state.model, False):
                note(record)
        if progress is not None and event % PROGRESS_EVERY == 0:
            progress(scenario.seed, event)
    for record in evaluate(event, simulation.state.version, simulation.state.model, True):
        note(record)
    note({"kind": "end", "event": event, "time": simulation.timeline.now})
    if progress is not None:
        progress(scenario.seed, wanted)
    return summary


def _evaluation(scenario: Scenario) -> Callable[[int, int, Vector, bool], Iterable[Record]]:
    """Records of what the model can do; none in a training-free run."""
    if scenario.trainer is None:
        return lambda event, version, model, final: ()
    from fedraw.experiments.evaluation import Evaluator

    evaluator = Evaluator(scenario)

    def evaluate(event: int, version: int, model: Vector, final: bool) -> Iterable[Record]:
        measured = evaluator(model, final)
        return [{"kind": "evaluation", "event": event, "version": version, **measured}]

    return evaluate


@contextmanager
def _opened_log(folder: Path | None, scenario: Scenario) -> Iterator[EventLog | None]:
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    for stale in ("summary.json", "timing.json", "model.safetensors"):
        (folder / stale).unlink(missing_ok=True)
    (folder / "spec.toml").write_text(to_toml(scenario.tables()), encoding="utf-8")
    with (folder / "events.jsonl").open("w", encoding="utf-8") as file:
        yield EventLog(file)


def _write_results(folder: Path, result: Result, layout: Layout | None, seconds: float) -> None:
    if layout is not None:
        tensors = {
            s.name: np.ascontiguousarray(result.model[s.slice].reshape(s.shape))
            for s in layout.segments
        }
        save_file(tensors, folder / "model.safetensors")
    events = result.summary["events"]
    timing = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "events_per_second": round(events / seconds, 1),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    (folder / "timing.json").write_text(json.dumps(timing, indent=2) + "\n", encoding="utf-8")
    # Last, and in one move: where it stands, the run is whole.
    draft = folder / "summary.json.part"
    draft.write_text(json.dumps(result.summary, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / "summary.json")
