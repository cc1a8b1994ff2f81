"""`fedraw run`: run an experiment from a spec file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedraw.cli import console
from fedraw.cli.options import DataRoot, Force, Jobs, Json, refuse_resume_and_force
from fedraw.errors import BadInput, FedrawError, Interrupted
from fedraw.eventlog.compare import compare
from fedraw.experiment.cells import Cell, CellProgress, cores, resume_lines, run_cells
from fedraw.experiment.divergence import divergence
from fedraw.experiment.loading import prepare
from fedraw.experiment.options import Options
from fedraw.experiment.result import SeedResult, accepted_nothing, problems_of
from fedraw.experiment.runner import check_seed, refuse_existing
from fedraw.experiment.spec import VERSION, Spec, names_version, naming, parse_change, to_toml
from fedraw.report.page import write_report
from fedraw.report.tables import text_table


class ExecutorName(StrEnum):
    """The executors that train clients; results do not depend on the choice."""

    inline = "inline"
    batched = "batched"
    processes = "processes"
    ray = "ray"


def run(  # noqa: PLR0913, PLR0917 - one for each option
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC.toml", help="The spec of the experiment.")
    ],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key, for example strategy.buffer=5."
        ),
    ] = None,
    replay_speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Take all training times, joins and leaves from the event log of "
            "a server or of a run.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds instead of those in the spec, for example 42,123,456.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Folder for the runs; by default runs/<name of the spec>."
        ),
    ] = None,
    data: DataRoot = None,
    jobs: Jobs = None,
    executor: Annotated[
        ExecutorName,
        typer.Option(
            help="inline: each process runs one seed. batched: the same, training many clients at "
            "once, for small fully connected models. processes: all processes train the clients "
            "of one seed. ray: the workers of a Ray cluster do."
        ),
    ] = ExecutorName.inline,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of a Ray cluster, or auto; by default, one is started on this machine."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue interrupted runs and keep finished ones.")
    ] = False,
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and describe what would run.")
    ] = False,
    json_: Json = False,
) -> None:
    """Run an experiment: one folder per seed, then one table."""
    refuse_resume_and_force(resume, force)
    if address is not None and executor is not ExecutorName.ray:
        raise BadInput(f"--address {address} is for a Ray cluster; add --executor ray")
    workers = jobs or (cores() if address is None else 0)
    options = Options(executor.value, workers, address, data, resume=resume, force=force)
    spec = read_spec(spec_file, change)
    if replay_speeds is not None:
        with naming(spec_file):
            spec = spec.replaying(replay_speeds)
    if seeds is not None:
        spec = _with_seeds(spec, seeds)
    folder = out or Path("runs") / spec_file.stem
    cells = [Cell(spec, seed, folder / f"seed-{seed}") for seed in spec.run.seeds]
    for cell in cells:
        refuse_folder(cell, options)  # before loading data and starting a cluster
    for line in resume_lines(cells) if resume else ():
        console.say(line)
    if dry_run:
        with naming(spec_file):
            facts = _check(cells, options)
        _describe(spec, facts, json_)
        return
    with naming(spec_file), running(cells, options, jobs) as progress:
        results = run_cells(cells, options, jobs, progress)
    rows = compare(results)
    if json_:
        console.print_json(rows.as_json())
    else:
        console.out.print(text_table(rows, width=console.out.width))
        console.say(f"written to {folder}")
    _write_page(cells, folder / "report.html", spec_file.stem)
    _report_problems(results, spec)


def read_spec(spec_file: Path, change: Sequence[str] | None) -> Spec:
    """Read the spec with the changes of --set, and say if the file names no version."""
    spec = Spec.from_file(spec_file, dict(parse_change(text) for text in change or ()))
    if not names_version(spec_file):
        console.say(
            f"{spec_file} names no version of the format and is read as version {VERSION}; write "
            f"'version = {VERSION}' as its first line"
        )
    return spec


@contextmanager
def running(cells: Sequence[Cell], options: Options, jobs: int | None) -> Iterator[CellProgress]:
    """Load the data and start the workers; yield the function that shows the progress."""
    with console.task_progress() as progress:
        prepare(cells[0].spec, options.data_root, progress)
    side_by_side = 1 if options.has_workers else jobs or cores()
    try:
        with console.cell_progress(cells, side_by_side) as shown, options.connected():
            yield shown
    except KeyboardInterrupt:  # while workers were starting or ending
        raise Interrupted("interrupted") from None


def refuse_folder(cell: Cell, options: Options) -> None:
    """Refuse a folder that holds another run, or that cannot be written to."""
    refuse_existing(cell.folder, options)
    folder = cell.folder
    while folder is not None and not folder.is_dir():
        if folder.exists():
            raise BadInput(
                f"cannot write to {cell.folder}: {folder} is not a folder; choose another --out"
            )
        folder = folder.parent
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write to {cell.folder}: no permission; choose another --out")


def _write_page(cells: Sequence[Cell], page: Path, title: str) -> None:
    """Write the page; the runs are finished even if this fails."""
    try:
        command = shlex.join(["fedraw", "report", str(page.parent), "-o", str(page)])
        folders = [cell.folder for cell in cells if cell.folder]
        write_report(folders, page, title=title, command=command)
    except BadInput as problem:
        console.say(f"{page.name} was not written: {problem}")
    except KeyboardInterrupt:
        console.say(f"{page.name} was not written: interrupted; the runs are finished")


def _report_problems(results: Sequence[SeedResult], spec: Spec) -> None:
    """Report refused updates and missing aggregations; fail if a run accepted no update."""
    lr = None if "train" in spec.plugin_parts else spec.training.lr
    for problem in (*problems_of(results), *divergence(results, lr)):
        console.say(problem)
    if any(map(accepted_nothing, results)):
        raise FedrawError("a run accepted no update at all")


def _with_seeds(spec: Spec, text: str) -> Spec:
    try:
        return replace(spec, run=replace(spec.run, seeds=parse_seeds(text)))
    except BadInput as problem:
        message = str(problem)
        prefix = "" if message.startswith("--seeds") else f"--seeds {text}: "
        raise BadInput(prefix + message) from None


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a list of seeds such as 42,123,456."""
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise BadInput(
            f"--seeds {text!r} is not a list of whole numbers, such as 42,123,456"
        ) from None


def _check(cells: Sequence[Cell], options: Options) -> dict[str, Any]:
    """Do everything that a run does before its first event except writing; describe one seed."""
    if options.address is not None:
        with options.connected():  # to a running cluster; a dry run starts none
            pass
    with console.task_progress() as progress:
        options = replace(options, data_progress=progress)
        first, *others = cells
        scenario = check_seed(*first[:3], options)
        for cell in others:  # one at a time, because each has its own copy of the data
            check_seed(*cell[:3], options)
    return {
        "clients": len(scenario.clients.table),
        "rare_labels": [
            scenario.clients.dataset.label_names[label] for label in scenario.clients.rare_labels
        ],
        "rare_clients": [
            scenario.clients.table.clients[position] for position in sorted(scenario.clients.rare)
        ],
        "parameters": int(scenario.setup.model.size),
        "training_samples": len(scenario.clients.dataset.labels),
        "test_samples": len(scenario.clients.dataset.test_labels),
        "notes": list(scenario.notes),
        "folders": [str(cell.folder) for cell in cells],
    }


def _describe(spec: Spec, facts: Mapping[str, Any], as_document: bool) -> None:
    if as_document:
        console.print_json({"spec": spec.to_dict(), **facts})
        return
    console.write(to_toml(spec.to_dict()) + "\n")
    for name, value in facts.items():
        console.write(f"# {name.replace('_', ' ')}: {value}\n")
