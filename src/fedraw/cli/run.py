"""fedraw run: an experiment from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.errors import BadInput, FedrawError, Interrupted
from fedraw.experiments.cells import Cell, cores, run_cells
from fedraw.experiments.compare import as_json, compare
from fedraw.experiments.crew import Crew, executor_of
from fedraw.experiments.run import How, Result, refuse_existing
from fedraw.experiments.scenario import Scenario
from fedraw.experiments.source import Where, prepare
from fedraw.experiments.spec import Spec, parse_change
from fedraw.experiments.toml import to_toml
from fedraw.report.page import write_report
from fedraw.report.tables import text_table


class ExecutorName(StrEnum):
    inline = "inline"
    batched = "batched"
    processes = "processes"
    ray = "ray"


def run(  # noqa: PLR0913, PLR0917 - one for each option
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The experiment.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as strategy.buffer=5."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds instead of the file's, as 42,123,456.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default runs/<spec name>.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(envvar="FEDRAW_DATA", help="The data root: folder of the public data sets."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to use; by default one per core.", min=1)
    ] = None,
    executor: Annotated[
        ExecutorName,
        typer.Option(
            help="inline: a process runs a seed; batched: it trains many clients at once, for "
            "small fully connected models; processes: all of them train one seed; ray: those of a "
            "cluster do."
        ),
    ] = ExecutorName.inline,
    address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster, or auto; by default one is started on this machine."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what was stopped; keep what is done.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace runs that are there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would run.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an experiment: each seed into its own folder, then one table."""
    spec = Spec.from_toml(spec_file, dict(parse_change(text) for text in change or ()))
    if seeds is not None:
        spec = replace(spec, run=replace(spec.run, seeds=_parse_seeds(seeds)))
    folder = out or Path("runs") / spec_file.stem
    cells = [Cell(spec, seed, folder / f"seed-{seed}") for seed in spec.run.seeds]
    if dry_run:
        _describe(spec, cells, Crew(executor.value), data, json_)
        return
    if resume and force:
        raise BadInput("--resume and --force exclude each other; give one")
    crew = _crew(executor, jobs, address)
    with console.task_progress() as progress:
        prepare(spec, Where(data, progress))
    with console.cell_progress(cells) as progress:
        how = How(crew, Where(data), resume=resume, force=force)
        for cell in cells:
            refuse_existing(cell.folder, how)  # before a cluster is started
        try:
            with crew.gathered():
                results = run_cells(cells, how, jobs, progress)
        except KeyboardInterrupt:  # while workers were gathered or sent home
            raise Interrupted("interrupted") from None
    rows = compare(results)
    if json_:
        console.print_json(as_json(rows))
    else:
        console.out.print(text_table(rows))
        console.say(f"written to {folder}")
    _write_page(cells, folder / "report.html", spec_file.stem)
    _tell_what_went_wrong(results)


def _write_page(cells: Sequence[Cell], page: Path, title: str) -> None:
    """The runs are done and stay so, whatever becomes of their page."""
    try:
        write_report([cell.folder for cell in cells if cell.folder], page, title=title)
    except BadInput as problem:
        console.say(f"no {page.name}: {problem}")
    except KeyboardInterrupt:
        console.say(f"no {page.name}: interrupted; the runs are finished")


def _crew(executor: ExecutorName, jobs: int | None, address: str | None) -> Crew:
    if address is None:
        return Crew(executor.value, jobs or cores())
    if executor is not ExecutorName.ray:
        raise BadInput(f"--address {address} is for a Ray cluster; add --executor ray")
    return Crew("ray", jobs or 0, address)


def _tell_what_went_wrong(results: Sequence[Result]) -> None:
    """Refused updates and missing aggregations; a run that took in nothing has failed."""
    for result in results:
        summary = result.summary
        refused = sum(summary["rejected"].values())
        if refused:
            worst = max(summary["rejected"], key=summary["rejected"].__getitem__)
            console.say(
                f"seed {result.seed}: {refused} of {summary['events']} updates were refused, most "
                f"of them of client {worst}; the reasons are in events.jsonl"
            )
        if not summary["metrics"]["Aggregations"]:
            console.say(
                f"seed {result.seed}: the model never changed: nothing was aggregated in "
                f"{summary['events']} events"
            )
    if any(sum(r.summary["rejected"].values()) == r.summary["events"] for r in results):
        raise FedrawError("a run took in no update at all; is training.lr too high?")


def _folder(folder: Path) -> str:
    taken = (folder / "events.jsonl").exists()
    return f"{folder} (holds a run: --resume or --force)" if taken else str(folder)


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise BadInput(f"--seeds {text!r} is no list of whole numbers, as 42,123,456") from None


def _describe(
    spec: Spec, cells: list[Cell], crew: Crew, data: Path | None, as_document: bool
) -> None:
    with console.task_progress() as progress:  # loads the data, draws clients, builds the model
        scenario = Scenario.of(spec, cells[0].seed, where=Where(data, progress))
    with executor_of(scenario, None if crew.has_workers else crew) as executor:
        scenario.simulation(executor)  # reads the trace, starts the strategy
    facts = {
        "clients": len(scenario.clients.table),
        "rare_clients": sorted(scenario.clients.rare),
        "parameters": int(scenario.initial.size),
        "training_images": len(scenario.clients.dataset.labels),
        "test_images": len(scenario.clients.dataset.test_labels),
        "notes": list(scenario.notes),
        "folders": [_folder(cell.folder) for cell in cells if cell.folder],
    }
    if as_document:
        console.print_json({"spec": spec.tables(), **facts})
        return
    print(to_toml(spec.tables()))
    for name, value in facts.items():
        print(f"# {name.replace('_', ' ')}: {value}")
