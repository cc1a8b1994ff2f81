"""`fedraw tune`: find the best point of a small grid on tuning seeds; write it as a new spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedraw.cli import console
from fedraw.cli.options import DataRoot, Force, Jobs, Json, refuse_resume_and_force
from fedraw.cli.run import ExecutorName, parse_seeds, read_spec, refuse_folder, running
from fedraw.errors import BadInput
from fedraw.experiment.cells import cores
from fedraw.experiment.options import Options
from fedraw.experiment.spec import naming
from fedraw.experiment.tuning import Grid, Tuning, parse_over, refuse_other_file, run_grid


def tune(  # noqa: PLR0913, PLR0917 - one for each option
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC.toml", help="The spec whose settings are tuned.")
    ],
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE,…",
            help="A key and its values, for example strategy.server_lr=0.25,0.5,1,2,3; several "
            "make a grid.",
        ),
    ],
    seeds: Annotated[
        str, typer.Option(help="The tuning seeds; none of them may be a seed of the spec.")
    ] = "1,2,3",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The spec to write; by default <name>-tuned.toml."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key, for example strategy.name=ca2fl."
        ),
    ] = None,
    events: Annotated[
        int | None, typer.Option(help="Events of a tuning run; by default as in the spec.", min=1)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Metrics whose mean is maximised; by default GlobalAcc,AvgRare, or GlobalAcc if "
            "no label is rare.",
        ),
    ] = None,
    last: Annotated[
        bool,
        typer.Option(
            "--last", help="Use the last model alone, not the mean of the last five evaluations."
        ),
    ] = False,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder for the tuning runs; by default runs/<name of --out>-runs."),
    ] = None,
    data: DataRoot = None,
    jobs: Jobs = None,
    executor: Annotated[
        ExecutorName, typer.Option(help="The executor that trains clients, as in 'fedraw run'.")
    ] = ExecutorName.inline,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue, keep finished runs, and run new points."),
    ] = False,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Choose settings on tuning seeds: run a grid, write the best point as a new spec."""
    refuse_resume_and_force(resume, force)
    out = out or spec_file.with_name(f"{spec_file.stem}-tuned.toml")
    refuse_other_file(out)
    spec = read_spec(spec_file, change)
    options = Options(executor.value, jobs or cores(), data_root=data, resume=resume, force=force)
    with naming(spec_file):
        grid = Grid(
            spec,
            _values(over),
            parse_seeds(seeds),
            None if by is None else tuple(name.strip() for name in by.split(",")),
            last,
            events,
        )
    folder = runs or Path("runs") / f"{out.stem}-runs"
    with naming(spec_file):
        tuning = _run(grid, folder, options, jobs)
    document = tuning.as_json() | {"spec": str(out), "runs": str(folder)}
    if json_:
        console.print_json(document if tuning.best else document | {"spec": None})
    else:
        console.write(tuning.table_text() + "\n")
    for note in tuning.notes:
        console.say(note)
    tuning.write(out)  # fails if no point can be chosen
    chosen = ", ".join(f"{key} = {value}" for key, value in tuning.settings.items())
    console.say(f"{chosen}: {tuning.rule}")
    console.say(f"{out} written; run it with: fedraw run {out}")


def _values(over: list[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for key, own in map(parse_over, over):
        if key in values:
            raise BadInput(f"--over {key} is given twice; give all of its values at once")
        values[key] = own
    return values


def _run(grid: Grid, folder: Path, options: Options, jobs: int | None) -> Tuning:
    cells = grid.cells(folder)
    for cell in cells:
        refuse_folder(cell, options)
    console.say(f"{grid}; in {folder}")
    with running(cells, options, jobs) as progress:
        return run_grid(grid, cells, options, jobs, progress)
