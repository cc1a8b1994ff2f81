"""The command `fedraw reproduce`: run a study, write its documents, judge the paper's claims."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedraw.cli import console
from fedraw.cli.options import Jobs
from fedraw.core.text import duration, several
from fedraw.errors import BadInput, FedrawError, Interrupted, MissingExtra, nearest
from fedraw.experiment.cells import cores
from fedraw_studies.arena_render import is_of_arena, write_arena
from fedraw_studies.artefacts import (
    ARENA,
    BEYOND,
    CHOICES,
    DYNAMICS,
    EVERY,
    EVIDENCE,
    GROUPS,
    LATE,
    NAMES,
    ONE_PASS,
    OPEN,
    Scale,
    load_dynamics,
    refuse_unknown,
    scale_names,
    study_of,
)
from fedraw_studies.bound_report import BoundReport
from fedraw_studies.cells import CellFiles
from fedraw_studies.dynamics import DynamicsResults, dynamics_cells, measure_dynamics
from fedraw_studies.execute import (
    FailedRun,
    Machine,
    Workspace,
    clear_finished,
    prepare_all,
    refuse_missing_data,
    run_plan,
    unfinished,
)
from fedraw_studies.figures import write_figures
from fedraw_studies.late_render import is_of_late, write_late
from fedraw_studies.one_pass_render import is_of_one_pass, write_one_pass
from fedraw_studies.outcomes import Outcome, outcomes
from fedraw_studies.overview import write_overview
from fedraw_studies.plan import Planned, budget, budget_document, load_artefacts, make_plan
from fedraw_studies.positioning import as_json, profiles, table1_markdown
from fedraw_studies.progress import Closing, budget_lines, plan_progress
from fedraw_studies.render import (
    outcome_markdown,
    refuse_document,
    section_of,
    tally,
    write_block,
    write_documents,
    write_dynamics,
)

# These need no training and therefore no data.
DATALESS = ("fig2", DYNAMICS)
PAPER = (*NAMES, DYNAMICS)
# These are computed and printed on each request by name, and not stored.
PRINTED = ("table1", "bound")
KNOWN = (*PAPER, *PRINTED, *GROUPS, *BEYOND, *EVIDENCE, *OPEN, *CHOICES, *ARENA, *LATE, *ONE_PASS)


def reproduce(  # noqa: PLR0913, PLR0917 - one for each option
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARTEFACT]…",
            help=f"Any of: {', '.join(KNOWN)}. Default: all of the paper's. "
            f"{' and '.join(GROUPS)} select all artefacts whose names begin with the word.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="|".join(scale_names()),
            help="cpu: reduced, hours; level: closer to the paper, a day; ham10000: the sweeps on "
            "HAM10000 instead of EMNIST, half an hour; smoke: embedded data, a minute or two; "
            "paper: the full protocol.",
        ),
    ] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(envvar="FEDRAW_DATA", help="The data root: folder of the public data sets."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="ResNet-18 weights instead of the published ones.")
    ] = None,
    device: Annotated[str, typer.Option(help="Training device: cpu, cuda, cuda:N or mps.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Folder of finished runs and tables. Default: results/<scale>, in a clone of the "
            "repository studies/results/<scale>.",
        ),
    ] = None,
    jobs: Jobs = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Restart runs that were stopped."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds of dynamics, from 1 on (default 30).", min=1),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Run only the rows on this data set, such as ham10000; may be repeated."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Run only the runs of this seed; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and how long it would take.")
    ] = False,
    render: Annotated[
        bool,
        typer.Option("--render", help="Run nothing: render the finished runs."),
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(
            help="Also write the tables of this scale between the markers of this Markdown file."
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce the paper: tables and figures with its values next to ours, and judged claims.

    Each finished run is a line of OUT/STUDY.jsonl and is never run again; a stopped run is resumed.
    The last lines say what was run, what was reused, what failed, and where the tables are.
    """
    if render and (force or dry_run):
        other = "--force" if force else "--dry-run"
        raise BadInput(f"--render and {other} exclude each other; give one")
    chosen = Scale.named(scale)
    wanted = _wanted(artefacts or [name for name in PAPER if chosen.has(name)])
    _refuse_absent(wanted, chosen)
    if seeds is not None and DYNAMICS not in wanted:
        raise BadInput(f"--seeds {seeds} is for dynamics; the others have the seeds of the paper")
    printed = _print_computed(wanted, quiet=json_, only_name=render or dry_run)
    wanted = [name for name in wanted if name not in PRINTED]
    if not wanted:
        if json_:
            console.print_json(printed)
        return
    folder = out or _default_out() / scale
    _refuse_earlier(folder / "cells")
    work = Workspace(CellFiles(folder), folder / "runs")
    machine = Machine(data, weights, device)
    for name in dataset or ():
        if name not in chosen.settings:
            raise BadInput(f"--dataset {name!r} is unknown; {nearest(name, chosen.settings)}")
    if docs is not None:
        refuse_document(docs)
    task = _Reproduction(
        wanted,
        chosen,
        folder,
        work,
        machine,
        jobs,
        force,
        docs,
        quiet=json_,
        datasets=tuple(dataset or ()),
        seeds=tuple(seed or ()),
    )
    failures: list[FailedRun] = []
    if render:
        document = task.render()
    elif dry_run:
        document = task.dry_run()
    else:
        # The training-free part runs again if it is named; otherwise earlier results are kept.
        kept = None if artefacts else DynamicsResults.read(folder)
        document, failures = task.run(seeds or chosen.dynamics_seeds, kept)
    if json_:
        console.print_json({**document, **printed})
    if failures:
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise FedrawError(f"{count} failed, see above; run the same command to try again")


@dataclass(frozen=True)
class _Reproduction:
    """One call of the command: what to reproduce, where, and with which resources."""

    names: Sequence[str]
    scale: Scale
    folder: Path
    work: Workspace
    machine: Machine
    jobs: int | None
    force: bool
    docs: Path | None
    quiet: bool
    datasets: tuple[str, ...] = ()  # the data sets to run; empty: all
    seeds: tuple[int, ...] = ()

    @property
    def planned_names(self) -> list[str]:
        """The artefacts whose runs are planned and stored."""
        return [name for name in self.names if name != DYNAMICS]

    def plan(self) -> list[Planned]:
        plan = make_plan(load_artefacts(self.planned_names, self.scale))
        selected = [
            own
            for own in plan
            if (not self.datasets or own.dataset in self.datasets)
            and (not self.seeds or own.seed in self.seeds)
        ]
        if plan and not selected:
            _refuse_selection(plan, self.datasets, self.seeds)
        return selected

    def render(self) -> dict[str, Any]:
        """Write all documents from the finished runs alone: no data, no training."""
        if not self.work.cells.names():
            raise BadInput(f"no finished runs in {self.folder}; run without --render first")
        for problem in self.work.cells.damage():
            console.say(problem)
        return self._write()

    def dry_run(self) -> dict[str, Any]:
        """Print the budget and the missing data."""
        plan = self.plan()
        to_run = unfinished(plan, self.work)
        self._tell_budget(plan, to_run)
        try:
            refuse_missing_data(to_run, self.machine, DATALESS)
        except BadInput as problem:
            console.say(str(problem))
        return budget_document(plan, to_run)

    def run(
        self, seeds: int, kept: DynamicsResults | None
    ) -> tuple[dict[str, Any], list[FailedRun]]:
        """Run the unfinished runs, and write the documents, even after an interrupt."""
        begun = time.monotonic()
        plan = self.plan()
        to_run = unfinished(plan, self.work)
        self._tell_budget(plan, to_run)
        to_run = self._without_waiting(to_run)
        refuse_missing_data(to_run, self.machine, DATALESS)
        dynamics, came_of_it = None, ""
        try:
            with self.work.locked():
                to_run = unfinished(to_run, self.work)  # another process may have finished some
                failures = self._run_plan(to_run)
                if DYNAMICS in self.names:
                    dynamics, came_of_it = self._run_dynamics(seeds, kept)
                clear_finished(plan, self.work)
        except (Interrupted, KeyboardInterrupt):
            self._tell_interrupt(to_run)
            if self.work.cells.names():
                every = self._outcomes()
                write_documents(_in_tables(every), self.scale.name, self.folder)
                self._write_arena(every)
                self._write_late(every)
                self._write_one_pass(every)
            raise SystemExit(130) from None  # typer.Exit(130) would print a second message
        document = self._write() if self.planned_names else {}
        if dynamics is not None:
            document |= {DYNAMICS: dynamics.as_json()} if document else dynamics.as_json()
        closing = Closing(plan, to_run, failures, time.monotonic() - begun, came_of_it)
        for line in closing.lines():
            console.say(line)
        return {**document, "run": closing.as_json()}, failures

    def _run_plan(self, to_run: Sequence[Planned]) -> list[FailedRun]:
        if not to_run:
            return []
        with console.task_progress() as loading:
            specs = [self.machine.localised(planned.spec) for planned in to_run]
            prepare_all(specs, self.machine.root, loading)
        with plan_progress(to_run, self.jobs or cores()) as bar:
            return run_plan(
                to_run,
                self.work,
                self.machine,
                jobs=self.jobs,
                force=self.force,
                progress=bar.events,
                done=bar.finished,
            )

    def _run_dynamics(
        self, seeds: int, kept: DynamicsResults | None
    ) -> tuple[DynamicsResults, str]:
        """Run the training-free part, unless `kept` has it for as many seeds."""
        if kept is not None and kept.seeds == seeds and kept.is_complete:
            return kept, f"reused, {seeds} seeds; 'fedraw reproduce dynamics' runs it again"
        begun, cells = time.monotonic(), dynamics_cells(load_dynamics(), seeds)
        with console.cell_progress(cells, self.jobs or cores()) as progress:
            results = measure_dynamics(cells, self.jobs, progress)
        text = write_dynamics(results, self.folder)
        if not self.quiet:
            console.write(text)
        took = duration(time.monotonic() - begun)
        return results, f"{len(cells)} runs in {took}; {self.folder / 'dynamics.md'}"

    def _write(self) -> dict[str, Any]:
        """Write the documents of all artefacts with results, and print the requested ones."""
        outcomes = self._outcomes()
        every = _in_tables(outcomes)
        content = write_documents(every, self.scale.name, self.folder)
        try:
            write_overview(self.folder.parent)
        except BadInput as problem:  # of another scale
            console.say(f"no overview of all scales: {problem}")
        content |= self._write_arena(outcomes)
        self._write_late(outcomes)
        self._write_one_pass(outcomes)
        figures: list[Path] = []
        try:
            figures = write_figures(every, self.folder / "figures")
        except MissingExtra as problem:
            console.say(f"no figures: {problem}")
        if self.docs is not None and not write_block(self.docs, every, self.folder):
            console.say(
                f"the verdicts of all scales in {self.docs} are unchanged: {self.folder.parent} "
                "has no claims.md, because it does not hold the results of two scales"
            )
        asked = [own for own in every if own.name in self.names and own.is_begun]
        if not self.quiet:
            console.write("\n".join(outcome_markdown(outcome) for outcome in asked))
        if not set(self.names) <= {*ARENA, *LATE, *ONE_PASS}:
            console.say(tally(content["claims"]))
            tables = (
                several(list(dict.fromkeys(f"{study_of(own.name)}.md" for own in asked)))
                or "none; no run of these artefacts is finished"
            )
            console.say(f"tables in {self.folder}: {tables}; figures: {len(figures)}")
        chosen = [own for own in content["artefacts"] if own["name"] in self.names]
        return {**content, "artefacts": chosen}

    def _write_arena(self, every: Sequence[Outcome]) -> dict[str, Any]:
        """Write the documents of the arena if it is or was requested, and print them if it is."""
        own = [outcome for outcome in every if is_of_arena(outcome)]
        if not own:
            return {}
        text, content = write_arena(own, self.scale, self.folder)
        if set(self.names) & set(ARENA):
            if not self.quiet:
                console.write(text)
            console.say(f"the arena: {self.folder / 'arena.md'}, arena.html, arena-rates.toml")
        return content

    def _write_late(self, every: Sequence[Outcome]) -> None:
        """Write the document of "Lost, or late?" if it was requested, now or earlier."""
        own = [outcome for outcome in every if is_of_late(outcome)]
        if own:
            text = write_late(own, self.scale, self.folder, self.machine)
            if set(self.names) & set(LATE):
                if not self.quiet:
                    console.write(text)
                console.say(f"lost, or late: {self.folder / 'late.md'}, figures/late-demo.svg")

    def _write_one_pass(self, every: Sequence[Outcome]) -> None:
        """Write the document of the study of one pass if it was requested, now or earlier."""
        own = [outcome for outcome in every if is_of_one_pass(outcome)]
        if own:
            text = write_one_pass(own, self.scale, self.folder)
            if set(self.names) & set(ONE_PASS):
                if not self.quiet:
                    console.write(text)
                console.say(f"one pass: {self.folder / 'one-pass.md'}")

    def _without_waiting(self, to_run: Sequence[Planned]) -> list[Planned]:
        """Leave out the runs whose settings another artefact must choose first, with a message."""
        loaded = load_artefacts(list({planned.artefact for planned in to_run}), self.scale)
        waiting = {own.name: own.waits_for for own in loaded if own.waits_for}
        for why in waiting.values():
            console.say(f"not run: {why}")
        return [planned for planned in to_run if planned.artefact not in waiting]

    def _outcomes(self) -> list[Outcome]:
        """Return the outcomes of the paper's artefacts, and of ours that are or were requested.

        Ours share runs with the paper's, so they would otherwise appear without being requested.
        """
        ours = [
            name
            for name in (*BEYOND, *EVIDENCE, *OPEN, *CHOICES)
            if name in self.names or section_of(name, self.folder) is not None
        ]
        if set(self.names) & set(ARENA) or (self.folder / "arena.md").exists():
            ours += ARENA
        if set(self.names) & set(LATE) or (self.folder / "late.md").exists():
            ours += LATE
        if set(self.names) & set(ONE_PASS) or (self.folder / "one-pass.md").exists():
            ours += ONE_PASS
        return outcomes(self.work.cells, self.scale, [*NAMES, *ours], skip_damaged=True)

    def _tell_budget(self, plan: Sequence[Planned], to_run: Sequence[Planned]) -> None:
        if not self.planned_names:
            return
        processes = min(self.jobs or cores(), max(1, len(to_run)))
        for line in budget_lines(budget(plan, to_run), processes):
            console.say(line)
        if stray := self._stray():
            runs = f"{stray} finished {'run has' if stray == 1 else 'runs have'}"
            console.say(
                f"{self.folder}: {runs} settings that no artefact of its study has at scale "
                f"{self.scale.name}; nothing is deleted"
            )

    def _stray(self) -> int:
        """Count the finished runs of the requested studies that belong to none of their artefacts.

        A run stands in the file of a study that needs it.
        """
        studies = {study_of(name) for name in self.planned_names}
        every = (*EVERY, *ARENA, *LATE, *ONE_PASS)
        own = load_artefacts([name for name in every if study_of(name) in studies], self.scale)
        return len(self.work.cells.names(*studies) - {run.name for run in make_plan(own)})

    def _tell_interrupt(self, to_run: Sequence[Planned]) -> None:
        done = len({planned.name for planned in to_run} & self.work.cells.names())
        nothing = "; the results of dynamics were not written" if DYNAMICS in self.names else ""
        console.say(
            f"fedraw: interrupted; {done} of {len(to_run)} runs are finished and in "
            f"{self.folder}{nothing}; run the same command to continue"
        )


def _print_computed(names: Sequence[str], *, quiet: bool, only_name: bool) -> dict[str, Any]:
    """Print the artefacts that are not stored, and return them for JSON."""
    texts, documents = [], dict[str, Any]()
    if only_name:
        for name in PRINTED:
            if name in names:
                console.say(
                    f"{name} has no stored runs; give neither --render nor --dry-run to print it"
                )
        return documents
    if "table1" in names:
        measured = profiles()
        texts.append(table1_markdown(measured))
        documents["table1"] = as_json(measured)
    if "bound" in names:
        report = BoundReport.make()
        texts.append(report.markdown())
        documents["bound"] = report.as_json()
    if texts and not quiet:
        console.write("\n".join(texts))
    return documents


def _default_out() -> Path:
    """Return the folder of the committed results if the command runs in a clone."""
    committed = Path("studies/results")
    return committed if committed.is_dir() else Path("results")


def _refuse_earlier(cells: Path) -> None:
    """Refuse a folder with the finished runs of version 0.2, which would all run again."""
    if cells.is_dir():
        raise BadInput(
            f"{cells} has finished runs of version 0.2, one file for each; in a clone of the "
            f"repository, import them with 'python tools/import_cells.py {cells} {cells.parent}', "
            "then remove the folder"
        )


def _in_tables(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with a table each; the arena, "late" and one pass have their own."""
    own_documents = (is_of_arena, is_of_late, is_of_one_pass)
    return [own for own in outcomes if not any(owns(own) for owns in own_documents)]


def _refuse_selection(
    plan: Sequence[Planned], datasets: Sequence[str], seeds: Sequence[int]
) -> NoReturn:
    """Refuse --dataset and --seed if they leave no run of the plan."""
    given = [*(f"--dataset {name}" for name in datasets), *(f"--seed {seed}" for seed in seeds)]
    possible = [own for own in plan if not datasets or own.dataset in datasets] or plan
    known = several(list(dict.fromkeys(own.dataset for own in plan)))
    numbers = several([str(seed) for seed in sorted({own.seed for own in possible})])
    raise BadInput(
        f"{' '.join(given)} selects no run of {several(_artefacts(plan))}; "
        f"data sets: {known}; seeds: {numbers}"
    )


def _artefacts(plan: Sequence[Planned]) -> list[str]:
    return list(dict.fromkeys(own.artefact for own in plan))


def _refuse_absent(names: Sequence[str], scale: Scale) -> None:
    """Refuse artefacts that need runs and that the scale does not have."""
    absent = [name for name in names if name not in PRINTED and not scale.has(name)]
    if absent:
        raise BadInput(
            f"scale {scale.name} has no {several(absent)}; it has {', '.join(scale.artefacts)}; "
            "name these, or choose another scale"
        )


def _wanted(names: Sequence[str]) -> list[str]:
    """Return each artefact once; the name of a group selects all of its artefacts."""
    for name in names:
        refuse_unknown(name, KNOWN)
    groups = (GROUPS.get(name, (name,)) for name in names)
    return list(dict.fromkeys(name for group in groups for name in group))
