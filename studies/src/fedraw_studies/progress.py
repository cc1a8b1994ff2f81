"""Progress of a plan on standard error: its budget, how far it is, and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedraw.cli import console
from fedraw.errors import FedrawError
from fedraw_studies.cells import CellRecord
from fedraw_studies.plan import ArtefactBudget, Planned


def hours(seconds: float) -> str:
    """Format a duration.

    >>> hours(7), hours(190), hours(7 * 3600 + 720)
    ('7 s', '3 min', '7 h 12 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def budget_lines(shares: Sequence[ArtefactBudget], jobs: int) -> list[str]:
    """Format runs, runs to do, and their time on one core, by artefact and in all.

    >>> for line in budget_lines([ArtefactBudget("table2", 24, 20, 7200.0)], jobs=2):
    ...     print(line)
    artefact    runs to run one core
    table2        24     20 2 h 0 min
    in all        24     20 2 h 0 min, about 1 h 0 min on 2 processes
    """
    lines = [f"{'artefact':11} {'runs':>4} {'to run':>6} one core"]
    lines += [_line(s.artefact, s.runs, s.to_run, _time(s)) for s in shares]
    runs, to_run = sum(s.runs for s in shares), sum(s.to_run for s in shares)
    known = [s.seconds for s in shares if s.seconds is not None]
    whole = sum(known)
    if len(known) < len(shares):
        spent = "not measured at this scale"
    elif to_run:
        spent = f"{hours(whole)}, about {hours(whole / jobs)} on {_processes(jobs)}"
    else:
        spent = "nothing: all are finished"
    return [*lines, _line("in all", runs, to_run, spent)]


class PlanProgress:
    """Counts estimated seconds on one core, so that slow runs weigh more than quick ones."""

    def __init__(self, plan: Sequence[Planned], bar: Progress, task: TaskID) -> None:
        self._plan = plan
        self._bar = bar
        self._task = task
        self._cost = [_cost(planned) for planned in plan]
        self._share = [0.0] * len(plan)
        self._ended = [False] * len(plan)
        self._begun = time.monotonic()

    def events(self, number: int, events: int) -> None:
        """Note how many events of a run are done."""
        self._share[number] = min(1.0, events / self._plan[number].spec.run.events)
        self._show()

    def finished(self, number: int, outcome: CellRecord | FedrawError | OSError) -> None:
        """Note that a run ended; without a terminal, print a line about it."""
        self._share[number], self._ended[number] = 1.0, True
        self._show()
        if console.err.is_terminal:
            return
        planned = self._plan[number]
        took = f"{outcome.seconds:.0f} s" if isinstance(outcome, CellRecord) else "failed"
        console.say(
            f"{self._count} {planned.artefact}, {planned.label}, seed {planned.seed}: {took}"
            f"{self._left()}"
        )

    @property
    def _count(self) -> str:
        return f"{sum(self._ended)}/{len(self._plan)}"

    def _done(self) -> float:
        return sum(cost * share for cost, share in zip(self._cost, self._share, strict=True))

    def _left(self) -> str:
        """The time left, judged by the time that was needed so far."""
        done, whole = self._done(), sum(self._cost)
        if not done or all(self._ended):
            return ""
        spent = time.monotonic() - self._begun
        return f"; about {hours(spent * (whole - done) / done)} left"

    def _show(self) -> None:
        text = f"{self._count} runs{self._left()}"
        self._bar.update(self._task, completed=self._done(), left=text)


@contextmanager
def plan_progress(plan: Sequence[Planned]) -> Iterator[PlanProgress]:
    """Show one bar over the whole plan on a terminal, otherwise one line for each run."""
    columns = (BarColumn(), TextColumn("{task.fields[left]}"))
    hidden = not console.err.is_terminal
    with Progress(*columns, console=console.err, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=sum(map(_cost, plan)), left=f"0/{len(plan)} runs")
        yield PlanProgress(plan, bar, task)


def _cost(planned: Planned) -> float:
    """Seconds; where these are not known, events."""
    return float(planned.spec.run.events) if planned.seconds is None else planned.seconds


def _line(name: str, runs: int, to_run: int, spent: str) -> str:
    return f"{name:11} {runs:4} {to_run:6} {spent}"


def _time(share: ArtefactBudget) -> str:
    return "not measured" if share.seconds is None else hours(share.seconds)


def _processes(jobs: int) -> str:
    return "1 process" if jobs == 1 else f"{jobs} processes"
