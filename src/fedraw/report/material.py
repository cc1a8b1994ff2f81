"""The material of a report: all runs, each log read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Group, Run, grouped
from fedraw.eventlog.log_file import find_logs, read_log
from fedraw.eventlog.summary import RunSummary, end_of_log
from fedraw.report.course import Course


@dataclass(frozen=True, eq=False)
class Material:
    """The groups of a comparison, and the course of each of their seeds."""

    groups: Sequence[Group]
    courses: Mapping[str, Sequence[Course]]  # by the group's name, in the order of its runs

    @property
    def names(self) -> list[str]:
        """The names of the groups."""
        return [group.name for group in self.groups]

    @property
    def runs(self) -> Iterator[tuple[str, Run]]:
        """Each seed with the name of its group."""
        for group in self.groups:
            for run in group.runs:
                yield group.name, run


def read_material(folders: Iterable[Path]) -> Material:
    """Read all runs at or below these folders; an interrupted run counts as far as it came."""
    runs: list[Run] = []
    courses: dict[Path, Course] = {}
    for log in dict.fromkeys(log for folder in folders for log in find_logs(folder)):
        run, course = _read(log)
        runs.append(run)
        courses[log.parent] = course
    _refuse_other_data(runs)
    groups = grouped(runs)
    by_name = {group.name: [courses[run.folder] for run in group.runs] for group in groups}
    return Material(groups, by_name)


def interruption(run: Run) -> str:
    """Where an unfinished run ends; empty for a finished run."""
    if run.content["finished"]:
        return ""
    wanted = run.start.events
    of_all = "" if wanted is None else f" of {wanted}"
    if run.start.is_server:  # it may still be going on
        return f"not finished, at event {run.content['events']}{of_all}"
    return f"interrupted at event {run.content['events']}{of_all}"


def _read(log: Path) -> tuple[Run, Course]:
    summary, course = RunSummary(), Course()
    end = end_of_log(log)
    # A log without a summary may end in a line that was cut off when the run was killed.
    for record in read_log(log, until=end, allow_cut_off=end is None):
        summary.observe(record)
        course.observe(record)
    if summary.start is None or not summary.clients:
        raise BadInput(f"{log} names no run and no clients: it never began; leave it out")
    return Run(summary.as_dict(), summary.start, summary.evaluations, log.parent), course


def _refuse_other_data(runs: Sequence[Run]) -> None:
    """Refuse to put results on different test data into one table."""
    of_seed: dict[Any, Run] = {}
    for run in runs:
        # Another seed may draw other test data, but as much of it.
        _refuse(runs[0], run, "data", _form)
        _refuse(runs[0], run, "labels", _labels)
        _refuse(of_seed.setdefault(run.start.seed, run), run, "data", _fingerprint)


def _refuse(one: Run, other: Run, what: str, facts: Callable[[Run], str]) -> None:
    own, others = facts(one), facts(other)
    if own != others:
        raise BadInput(
            f"{one.folder} and {other.folder} cannot be compared, because their {what} differ: "
            f"{_few(own)} and {_few(others)}; make one report for each"
        )


def _labels(run: Run) -> str:
    if run.start.is_server:  # the founding sites named theirs; others may have come later
        return "those of the sites"
    return ", ".join(run.start.labels)


def _form(run: Run) -> str:
    data = run.start.data or {}
    sizes = [f"{data[key]} {key} samples" for key in ("train", "test") if key in data]
    return ", ".join([_data_name(run), *sizes])


def _fingerprint(run: Run) -> str:
    sha = (run.start.data or {}).get("sha256")
    return f"{_data_name(run)}, sha256 {sha}" if sha else _data_name(run)


def _data_name(run: Run) -> str:
    if run.start.is_server:
        return "those of a real federation"
    return str(run.content["spec"].get("data", {}).get("name", "data"))


def _few(words: str) -> str:
    return words if len(words) <= 120 else f"{words[:119]}…"
