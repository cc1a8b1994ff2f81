"""What a report is made of: each log read once, from its first line to its last whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraw.disk.event_log import Record, read_log
from fedraw.errors import BadInput
from fedraw.experiments.compare import Group, Run, find_logs, grouped
from fedraw.experiments.run_folder import ended_at
from fedraw.experiments.summary import Summary
from fedraw.report.course import Course


@dataclass(frozen=True, eq=False)
class Material:
    """The groups of a comparison, and the course of each of their seeds."""

    groups: Sequence[Group]
    courses: Mapping[str, Sequence[Course]]  # by the group's name, in the order of its runs

    @property
    def names(self) -> list[str]:
        return [group.name for group in self.groups]

    @property
    def runs(self) -> Iterator[tuple[str, Run]]:
        """Each seed with the name of its group."""
        for group in self.groups:
            for run in group.runs:
                yield group.name, run


def read_material(folders: Iterable[Path]) -> Material:
    """All runs at or below these folders; one that was interrupted counts as far as it came."""
    runs: list[Run] = []
    courses: dict[Path, Course] = {}
    for log in dict.fromkeys(log for folder in folders for log in find_logs(folder)):
        run, course = _read(log)
        runs.append(run)
        courses[log.parent] = course
    _refuse_other_data(runs)
    groups = grouped(runs)
    by_name = {
        group.name: [courses[run.folder] for run in group.runs if run.folder is not None]
        for group in groups
    }
    return Material(groups, by_name)


def interruption(run: Run) -> str:
    """Where a run ends before its end; empty for a finished one."""
    if run.content["finished"]:
        return ""
    wanted = run.start.get("events") or run.content["spec"].get("run", {}).get("events")
    of_all = "" if wanted is None else f" of {wanted}"
    if run.start.get("seed") is None:  # it may still be going on
        return f"not finished, at event {run.content['events']}{of_all}"
    return f"interrupted at event {run.content['events']}{of_all}"


def _read(log: Path) -> tuple[Run, Course]:
    summary, course = Summary(), Course()
    try:
        for record in _whole_records(log):
            summary.observe(record)
            course.observe(record)
        if not summary.start or not summary.clients:
            raise BadInput(f"{log} names no run and no clients: it never began; leave it out")
        content = summary.as_dict()
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        if isinstance(problem, BadInput):
            raise
        raise BadInput(
            f"{log} has a record that does not fit an event log ({problem}); did fedraw write it?"
        ) from None
    return Run(content, summary.start, summary.evaluations, log.parent), course


def _whole_records(log: Path) -> Iterator[Record]:
    """Without a last line that was cut off when the run was killed; a finished log has none."""
    end = ended_at(log)
    if end is not None:
        yield from read_log(log, until=end)
        return
    whole = 0
    try:
        for record in read_log(log):
            yield record
            whole += 1
    except BadInput:
        with log.open("rb") as file:
            cut_off = sum(1 for line in file if line.endswith(b"\n")) == whole
        if not (whole and cut_off):
            raise


def _refuse_other_data(runs: Sequence[Run]) -> None:
    """Numbers of different test images do not belong into one table."""
    of_seed: dict[Any, Run] = {}
    for run in runs:
        # Of another seed, for which test images may be drawn anew, their number must agree.
        _refuse(runs[0], run, "data", _form)
        _refuse(runs[0], run, "labels", _labels)
        _refuse(of_seed.setdefault(run.start.get("seed"), run), run, "data", _fingerprint)


def _refuse(one: Run, other: Run, what: str, facts: Callable[[Run], str]) -> None:
    own, others = facts(one), facts(other)
    if own != others:
        raise BadInput(
            f"{one.folder} and {other.folder} cannot be compared, because their {what} differ: "
            f"{_few(own)} and {_few(others)}; make one report for each"
        )


def _labels(run: Run) -> str:
    if run.start.get("seed") is None:  # whoever was there first named its own; others came later
        return "those of the sites"
    return ", ".join(map(str, run.start.get("labels", ())))


def _form(run: Run) -> str:
    data = run.start.get("data") or {}
    sizes = [f"{data[key]} {key} samples" for key in ("train", "test") if key in data]
    return ", ".join([_data_name(run), *sizes])


def _fingerprint(run: Run) -> str:
    sha = (run.start.get("data") or {}).get("sha256")
    return f"{_data_name(run)}, sha256 {sha}" if sha else _data_name(run)


def _data_name(run: Run) -> str:
    if run.start.get("seed") is None:
        return "those of a real federation"
    return str(run.content["spec"].get("data", {}).get("name", "data"))


def _few(words: str) -> str:
    return words if len(words) <= 120 else f"{words[:119]}…"
