"""fedraw reproduce: the paper's artefacts again, theirs beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedraw.cli import console
from fedraw.errors import BadInput, FedrawError, Interrupted, MissingExtra
from fedraw.experiment.cells import cores
from fedraw_studies.artefacts import (
    BEYOND,
    EVERY,
    EVIDENCE,
    NAMES,
    load_artefacts,
    refuse_unknown,
)
from fedraw_studies.cells import CellFiles
from fedraw_studies.cli_dynamics import reproduce_dynamics, saved_dynamics
from fedraw_studies.execute import (
    Failure,
    Workshop,
    clear_finished,
    damaged,
    run_plan,
    unfinished,
)
from fedraw_studies.figures import write_figures
from fedraw_studies.outcomes import Outcome, outcomes
from fedraw_studies.plan import Planned, budget, in_all, make_plan
from fedraw_studies.progress import PlanProgress, budget_lines, plan_progress
from fedraw_studies.render import tally, write_block, write_reproduction
from fedraw_studies.requirements import (
    Machine,
    prepare_all,
    refuse_missing_data,
)
from fedraw_studies.scales import Scale, scale_names
from fedraw_studies.tables import markdown

DYNAMICS = "dynamics"
# Of these nothing is trained, so they need no data.
DATALESS = ("fig2", DYNAMICS)
PAPER = (*NAMES, DYNAMICS)
# One word for several that are not the paper's.
GROUPS = {"beyond": BEYOND, "evidence": EVIDENCE}
KNOWN = (*PAPER, *GROUPS, *BEYOND, *EVIDENCE)


def reproduce(  # noqa: PLR0913, PLR0917 - one for each option
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARTEFACT]…",
            help=f"Of these: {', '.join(KNOWN)}. Default: the paper's. "
            f"{' and '.join(GROUPS)} stand for all that begin so.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="|".join(scale_names()),
            help="cpu: reduced, hours; smoke: on embedded data, minutes; paper: to the letter.",
        ),
    ] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(envvar="FEDRAW_DATA", help="The data root: folder of the public data sets."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="ResNet-18 weights in the place of the published ones.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:N or mps.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of cells and tables. Default: results/<scale>, in a clone of the "
            "repository studies/results/<scale>."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to use; by default one per core.", min=1)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what was stopped: it always does, so no need."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace damaged cells; begin runs that were stopped anew."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="Of dynamics: how many seeds, from 1 on (default 30).", min=1),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and what it would take.")
    ] = False,
    render: Annotated[
        bool,
        typer.Option("--render", help="Run nothing: tables, verdicts, figures of what is there."),
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(help="Also put the verdicts between the markers of this Markdown file."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce the paper: its tables and figures, theirs beside ours, and what holds of it.

    Each finished run is a file in OUT/cells and is never run again; what was stopped goes on.
    """
    _refuse_both(("--resume", resume), ("--force", force))
    _refuse_both(("--render", render), ("--dry-run", dry_run))
    _refuse_both(("--render", render), ("--force", force))
    wanted = _wanted(artefacts or PAPER)
    if seeds is not None and DYNAMICS not in wanted:
        raise BadInput(f"--seeds {seeds} is for dynamics; the others have the seeds of the paper")
    chosen = Scale.named(scale)
    folder = out or _default_out() / scale
    trained = [name for name in wanted if name != DYNAMICS]
    machine = Machine(data, weights, device)
    shop = Workshop(CellFiles(folder), Path("runs") / f"reproduce-{scale}")
    plan = make_plan(load_artefacts(trained, chosen))
    if render:
        document = _render(trained, shop, chosen, docs, quiet=json_)
        if json_:
            console.print_json(document)
        return
    to_run = unfinished(plan, shop, force)
    if trained:
        _tell_budget(plan, to_run, shop, jobs, scale)
    if dry_run:
        _tell_missing(to_run, machine)
        if json_:
            console.print_json(_budget_document(plan, to_run))
        return
    refuse_missing_data(to_run, machine, DATALESS)
    try:
        failures = _run(to_run, shop, machine, jobs, force)
    except typer.Exit:  # interrupted: what is finished is worth a look already
        if shop.cells.names():
            write_reproduction(_outcomes(folder, chosen, trained), scale, folder)
        raise
    clear_finished(plan, shop)
    document = {}
    if trained:
        document = _write(trained, folder, chosen, docs, quiet=json_)
    if DYNAMICS in wanted:
        count = seeds or chosen.dynamics_seeds
        kept = None if artefacts else saved_dynamics(folder, count)
        own = reproduce_dynamics(count, jobs, folder, quiet=json_) if kept is None else kept
        if trained:
            own = {**_with_claims(document, folder, chosen, trained), DYNAMICS: own}
        document = own
    if json_:
        console.print_json(document)
    _tell_failures(failures)


def _default_out() -> Path:
    """Return the folder of the committed results where the command runs in a clone."""
    committed = Path("studies/results")
    return committed if committed.is_dir() else Path("results")


def _wanted(names: Sequence[str]) -> list[str]:
    """Each artefact once; the name of a group stands for all in it."""
    for name in names:
        refuse_unknown(name, KNOWN)
    groups = (GROUPS.get(name, (name,)) for name in names)
    return list(dict.fromkeys(name for group in groups for name in group))


def _run(
    to_run: Sequence[Planned], shop: Workshop, machine: Machine, jobs: int | None, force: bool
) -> list[Failure]:
    if not to_run:
        return []
    try:
        with console.task_progress() as loading:
            specs = [machine.localised(planned.spec) for planned in to_run]
            prepare_all(specs, machine.root, loading)
        with plan_progress(to_run, jobs or cores()) as bar:
            return _run_with(bar, to_run, shop, machine, jobs, force)
    except (Interrupted, KeyboardInterrupt):
        done = sum(shop.cells.path(planned.name).exists() for planned in to_run)
        console.say(
            f"fedraw: interrupted; {done} of {len(to_run)} runs are finished and in "
            f"{shop.cells.folder}; the same command goes on from here"
        )
        raise typer.Exit(130) from None


def _run_with(
    bar: PlanProgress,
    to_run: Sequence[Planned],
    shop: Workshop,
    machine: Machine,
    jobs: int | None,
    force: bool,
) -> list[Failure]:
    return run_plan(
        to_run, shop, machine, jobs=jobs, force=force, progress=bar.events, told=bar.finished
    )


def _render(
    names: Sequence[str], shop: Workshop, scale: Scale, docs: Path | None, quiet: bool
) -> dict[str, Any]:
    """From the cells alone: neither data nor training."""
    folder = shop.cells.folder.parent
    if not shop.cells.names():
        raise BadInput(f"no finished runs in {shop.cells.folder}; run without --render first")
    for problem in damaged(make_plan(load_artefacts(EVERY, scale)), shop):
        console.say(problem)
    return _write(names, folder, scale, docs, quiet)


def _write(
    names: Sequence[str], folder: Path, scale: Scale, docs: Path | None, quiet: bool
) -> dict[str, Any]:
    """All that is begun goes to files, what was asked for to standard output."""
    every = _outcomes(folder, scale, names)
    content = write_reproduction(every, scale.name, folder)
    try:
        write_figures(every, folder / "figures")
    except MissingExtra as problem:
        console.say(f"no figures: {problem}")
    if docs is not None:
        write_block(docs, every, folder)
    asked = [outcome for outcome in every if outcome.artefact in names]
    if not quiet:
        console.write("\n".join(markdown(outcome) for outcome in asked if outcome.is_begun))
    console.say(tally(content["claims"]))
    console.say(f"written to {folder}")
    return {
        **content,
        "artefacts": [own for own in content["artefacts"] if own["name"] in names],
    }


def _with_claims(
    document: dict[str, Any], folder: Path, scale: Scale, names: Sequence[str]
) -> dict[str, Any]:
    """Some claims are about the training-free figures, which have come after the others."""
    claims = write_reproduction(_outcomes(folder, scale, names), scale.name, folder)["claims"]
    return {**document, "claims": claims}


def _outcomes(folder: Path, scale: Scale, names: Sequence[str]) -> list[Outcome]:
    """The paper's, and of ours those that are asked for or were before.

    Ours share runs with the paper's, so that a table of them would begin without anyone's wish.
    """
    after = (*BEYOND, *EVIDENCE)
    ours = [name for name in after if name in names or (folder / f"{name}.md").exists()]
    return outcomes(folder, scale, [*NAMES, *ours], skip_damaged=True)


def _refuse_both(one: tuple[str, bool], other: tuple[str, bool]) -> None:
    if one[1] and other[1]:
        raise BadInput(f"{one[0]} and {other[0]} exclude each other; give one")


def _tell_budget(
    plan: Sequence[Planned],
    to_run: Sequence[Planned],
    shop: Workshop,
    jobs: int | None,
    scale: str,
) -> None:
    for line in budget_lines(budget(plan, to_run), min(jobs or cores(), max(1, len(to_run)))):
        console.say(line)
    every = make_plan(load_artefacts(EVERY, Scale.named(scale)))
    asked = {planned.name for planned in plan}
    for problem in damaged([planned for planned in every if planned.name not in asked], shop):
        console.say(problem)
    stray = len(shop.cells.names() - {planned.name for planned in every})
    if stray:
        console.say(
            f"{stray} cell file{'s' * (stray > 1)} in {shop.cells.folder} of other settings than "
            f"these of scale {scale}; left as they are"
        )


def _tell_missing(to_run: Sequence[Planned], machine: Machine) -> None:
    try:
        refuse_missing_data(to_run, machine, DATALESS)
    except BadInput as problem:
        console.say(str(problem))


def _budget_document(plan: Sequence[Planned], to_run: Sequence[Planned]) -> dict[str, Any]:
    seconds = in_all(to_run)
    return {
        "runs": len(plan),
        "to_run": len(to_run),
        "core_hours": None if seconds is None else round(seconds / 3600, 3),
        "artefacts": [
            {
                "name": share.artefact,
                "runs": share.runs,
                "to_run": share.to_run,
                "core_hours": None if share.seconds is None else round(share.seconds / 3600, 3),
            }
            for share in budget(plan, to_run)
        ],
    }


def _tell_failures(failures: Sequence[Failure]) -> None:
    for failure in failures:
        planned = failure.planned
        console.say(f"{planned.artefact}, {planned.label}, seed {planned.seed}: {failure.why}")
    if failures:
        what = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise FedrawError(f"{what} failed, as told above; the same command tries again")
