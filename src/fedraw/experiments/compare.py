"""Many runs, one table: a row per spec, mean and spread over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from fedraw.disk.event_log import Record, read_log
from fedraw.errors import BadInput
from fedraw.experiments.names import distinct_names
from fedraw.experiments.run_folder import ended_at
from fedraw.experiments.runner import Result
from fedraw.experiments.summary import Summary
from fedraw.metrics.accuracy import has_collapsed


@dataclass(frozen=True)
class Stat:
    """Mean and population standard deviation; None where a seed has no value."""

    mean: float | None
    sd: float | None
    values: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Stat:
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, None, tuple(values))
        return cls(fmean(known), pstdev(known), tuple(values))


@dataclass(frozen=True)
class Row:
    name: str
    seeds: tuple[int | None, ...]  # a real federation has none
    metrics: Mapping[str, Stat]
    notes: tuple[str, ...] = ()  # what has to be said wherever the row is shown
    collapsed: int = 0  # seeds whose last model is no better than chance; see has_collapsed

    @property
    def title(self) -> str:
        """The name, and that a model of the row has collapsed: such a row is never the best."""
        return f"{self.name} (collapsed)" if self.collapsed else self.name


@dataclass(frozen=True, eq=False)
class Run:
    """One seed: what its log says."""

    content: Mapping[str, Any]  # as in summary.json
    start: Record = field(default_factory=dict)
    evaluations: Sequence[Record] = ()
    folder: Path | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """One row of the comparison and the seeds it is made of."""

    row: Row
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that runs all these seeds again; of a real federation, how it was led."""
        spec: dict[str, Any] = dict(self.runs[0].content["spec"])
        if None in self.row.seeds:
            return spec
        return spec | {"run": spec["run"] | {"seeds": list(self.row.seeds)}}


def compare(runs: Iterable[Result | Path | str]) -> list[Row]:
    """One row per spec, in the order in which specs first appear."""
    return [group.row for group in group_runs(runs)]


def group_runs(runs: Iterable[Result | Path | str]) -> list[Group]:
    """The rows of a comparison with what lies behind them; each log is read once."""
    return grouped(_read(runs))


def grouped(seeds: Iterable[Run]) -> list[Group]:
    """Seeds of one spec together, named so that no two groups have one name."""
    by_spec: dict[str, list[Run]] = {}
    for run in seeds:
        by_spec.setdefault(identity(run.content), []).append(run)
    if not by_spec:
        raise BadInput("there are no runs; name a folder that 'fedraw run' has written")
    firsts = [group[0].content for group in by_spec.values()]
    names = distinct_names([s["name"] for s in firsts], [without_seeds(s) for s in firsts])
    groups = zip(names, by_spec.values(), strict=True)
    return [Group(_row(name, [run.content for run in runs]), runs) for name, runs in groups]


def notes_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """What has to stand beside these rows, each note once."""
    return _distinct(row.notes for row in rows)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "rows": [
            {
                "name": row.name,
                "seeds": list(row.seeds),
                "metrics": {
                    key: {"mean": stat.mean, "sd": stat.sd, "values": list(stat.values)}
                    for key, stat in row.metrics.items()
                },
                "notes": list(row.notes),
                "collapsed": row.collapsed,
            }
            for row in rows
        ]
    }


def find_logs(folder: Path) -> list[Path]:
    """The event logs at or below a folder, seeds in the order of their numbers."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise BadInput(f"{folder} does not exist; name a folder that 'fedraw run' has written")
    logs = sorted(folder.rglob("events.jsonl"), key=lambda log: (log.parent.parent, _seed(log)))
    if not logs:
        rotated = min(folder.rglob("events.jsonl.*"), default=None)
        hint = f"; is it {rotated}? Then rename it, and exempt it from log rotation"
        raise BadInput(
            f"{folder} holds no run: there is no events.jsonl in it or below it"
            f"{hint if rotated else ''}"
        )
    return logs


def _seed(log: Path) -> tuple[int, str]:
    number = log.parent.name.removeprefix("seed-")
    return (int(number) if number.isdigit() else -1, number)


def _read(runs: Iterable[Result | Path | str]) -> Iterable[Run]:
    for run in runs:
        if isinstance(run, Result):
            yield Run(run.summary, folder=run.folder)
            continue
        for log in find_logs(Path(run)):
            summary = _summary(log)
            if not summary.finished:
                raise BadInput(f"{log.parent} is not finished; run it to its end first")
            yield Run(summary.as_dict(), summary.start, summary.evaluations, log.parent)


def _summary(log: Path) -> Summary:
    try:
        return Summary.of(read_log(log, until=ended_at(log)))
    except (KeyError, TypeError) as problem:
        raise BadInput(f"{log} has a record that lacks {problem}; run it again") from None


def without_seeds(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a summary or a start record, which all seeds of one row share."""
    spec: dict[str, Any] = dict(summary["spec"])
    spec["run"] = {key: value for key, value in spec.get("run", {}).items() if key != "seeds"}
    if "server" in spec:  # where it was written says nothing about what it was
        spec["server"] = {k: v for k, v in spec["server"].items() if k != "folder"}
    return spec


def identity(summary: Mapping[str, Any]) -> str:
    return json.dumps([summary["name"], without_seeds(summary)], sort_keys=True)


def _row(name: str, group: Sequence[Mapping[str, Any]]) -> Row:
    seeds = tuple(summary["seed"] for summary in group)
    twice = next((seed for seed in seeds if seed is not None and seeds.count(seed) > 1), None)
    if twice is not None:
        raise BadInput(f"{name}, seed {twice} is given twice; name each run once")
    keys = group[0]["metrics"]
    stats = {key: Stat.of([summary["metrics"].get(key) for summary in group]) for key in keys}
    notes = _distinct(summary.get("notes", ()) for summary in group)
    collapsed = sum(has_collapsed(summary.get("recall", {}).values()) for summary in group)
    if collapsed:
        notes += (_collapse(name, collapsed, seeds),)
    return Row(name, seeds, stats, notes, collapsed)


def _collapse(name: str, collapsed: int, seeds: Sequence[int | None]) -> str:
    noun = "run" if None in seeds else "seed"
    where = f" in {collapsed} of {len(seeds)} {noun}s" if len(seeds) > 1 else ""
    return (
        f"{name} collapsed{where}: the last model is no better than one that always gives the "
        "same answer, so none of the row's figures is marked as best"
    )


def _distinct(notes: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for some in notes for note in some))
