"""Progress of a plan on standard error: its budget, the remaining time, and a final report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedraw.cli import console
from fedraw.core.text import duration
from fedraw.errors import FedrawError
from fedraw.experiment.progress import RemainingTime
from fedraw_studies.cells import CellRecord
from fedraw_studies.execute import FailedRun
from fedraw_studies.plan import ArtefactBudget, Planned, total_seconds


def budget_lines(shares: Sequence[ArtefactBudget], jobs: int) -> list[str]:
    """Format the runs, the remaining runs and their time on one core, by artefact and in total.

    >>> for line in budget_lines([ArtefactBudget("table2", 24, 20, 7200.0)], jobs=2):
    ...     print(line)
    artefact    runs to run one core
    table2        24     20 2 h 00 min
    in all        24     20 2 h 00 min, about 1 h 00 min on 2 processes
    """
    rows = [
        (s.artefact, s.runs, s.to_run, "not measured" if s.seconds is None else duration(s.seconds))
        for s in shares
    ]
    runs, to_run = sum(s.runs for s in shares), sum(s.to_run for s in shares)
    known = [s.seconds for s in shares if s.seconds is not None]
    if len(known) < len(shares):
        spent = "not measured at this scale"
    elif to_run:
        whole, shared = duration(sum(known)), duration(sum(known) / jobs)
        spent = f"{whole}, about {shared} on {_count(jobs, 'process')}"
    else:
        spent = "nothing: all are finished" if runs else "nothing: no run is needed"
    width = max(11, *(len(s.artefact) for s in shares)) if shares else 11
    lines = [f"{name:{width}} {n:4} {left:6} {t}" for name, n, left, t in rows]
    head = f"{'artefact':{width}} {'runs':>4} {'to run':>6} one core"
    return [head, *lines, f"{'in all':{width}} {runs:4} {to_run:6} {spent}"]


@dataclass(frozen=True)
class Closing:
    """The final report of a reproduction: its runs, reused runs, failures and duration."""

    plan: Sequence[Planned]
    to_run: Sequence[Planned]
    failures: Sequence[FailedRun]
    seconds: float
    dynamics: str = ""  # the result of the training-free part, if it was requested

    @property
    def ran(self) -> list[Planned]:
        """The runs that this command finished."""
        failed = {failure.planned.name for failure in self.failures}
        return [planned for planned in self.to_run if planned.name not in failed]

    def lines(self) -> list[str]:
        """Return the report as lines."""
        lines = [
            f"failed: {own.artefact}, {own.label}, seed {own.seed}: {failure.why}"
            for failure in self.failures
            for own in [failure.planned]
        ]
        if self.plan:
            by_artefact = Counter(planned.artefact for planned in self.ran)
            which = ", ".join(f"{name} {count}" for name, count in by_artefact.items())
            reused = len(self.plan) - len(self.to_run)
            lines.append(
                f"run: {_count(len(self.ran), 'run')}{which and f' ({which})'}; reused: "
                f"{_count(reused, 'finished run')}; failed: {len(self.failures) or 'none'}"
            )
        if self.dynamics:
            lines.append(f"dynamics: {self.dynamics}")
        return [*lines, f"done in {duration(self.seconds)}"]

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "ran": [planned.name for planned in self.ran],
            "reused": len(self.plan) - len(self.to_run),
            "failed": [{"run": own.planned.name, "why": own.why} for own in self.failures],
        }


class PlanProgress:
    """A progress bar in estimated seconds on one core, so that slow runs count more."""

    def __init__(self, plan: Sequence[Planned], jobs: int, bar: Progress, task: TaskID) -> None:
        self._plan = plan
        self._jobs = min(jobs, len(plan))
        self._bar = bar
        self._task = task
        self._cost = [_cost(planned) for planned in plan]
        self._remaining = RemainingTime(self._cost, jobs)
        self._ended = [False] * len(plan)
        self.show()

    def events(self, number: int, events: int) -> None:
        """Record how many events of a run are done."""
        share = min(1.0, events / self._plan[number].spec.run.events)
        self._remaining.report(number, self._cost[number] * share)
        self.show()

    def finished(self, number: int, outcome: CellRecord | FedrawError | OSError) -> None:
        """Record that a run ended; without a terminal, print a line about it."""
        self._remaining.report(number, self._cost[number])
        self._ended[number] = True
        self.show()
        if console.err.is_terminal:
            return
        planned = self._plan[number]
        took = f"{outcome.seconds:.0f} s" if isinstance(outcome, CellRecord) else "failed"
        console.say(
            f"{self._count} {planned.artefact}, {planned.label}, seed {planned.seed}: {took}"
            f"{self._left()}"
        )

    def show(self) -> None:
        """Update the bar."""
        text = f"{self._count} runs{self._left()}"
        self._bar.update(self._task, completed=self._remaining.done, left=text)

    @property
    def _count(self) -> str:
        return f"{sum(self._ended)}/{len(self._plan)}"

    def _left(self) -> str:
        """Return the remaining time, as measured or, at the beginning, as estimated."""
        if all(self._ended):
            return ""
        if left := str(self._remaining):
            return f"; {left}"
        estimate = total_seconds(self._plan)
        if estimate is None:
            return ""
        seconds = max(0.0, estimate - self._remaining.done) / self._jobs
        return f"; about {duration(seconds)} left, as estimated before the start"


@contextmanager
def plan_progress(plan: Sequence[Planned], jobs: int) -> Iterator[PlanProgress]:
    """Show one progress bar for the plan on a terminal, otherwise one line per run.

    `jobs` is the number of runs at a time.
    """
    columns = (BarColumn(), TextColumn("{task.fields[left]}"))
    hidden = not console.err.is_terminal
    with Progress(*columns, console=console.err, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=sum(map(_cost, plan)), left="")
        yield PlanProgress(plan, jobs, bar, task)


def _cost(planned: Planned) -> float:
    """Return the estimated seconds of a run, or its events if these are unknown."""
    return float(planned.spec.run.events) if planned.seconds is None else planned.seconds


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
