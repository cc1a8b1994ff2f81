"""Compares runs: one row per spec, with mean and spread over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Protocol

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import find_logs, read_log
from fedraw.eventlog.records import EvaluationRecord, StartRecord
from fedraw.eventlog.summary import RunSummary, end_of_log
from fedraw.metrics.accuracy import has_collapsed


@dataclass(frozen=True)
class Stat:
    """Mean and population standard deviation; None where a seed has no value."""

    mean: float | None
    sd: float | None
    values: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Stat:
        """The statistics of one value per seed.

        >>> Stat.of([1.0, 3.0])
        Stat(mean=2.0, sd=1.0, values=(1.0, 3.0))
        """
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, None, tuple(values))
        return cls(fmean(known), pstdev(known), tuple(values))


@dataclass(frozen=True)
class ComparisonRow:
    """One spec over all its seeds."""

    name: str
    seeds: tuple[int | None, ...]  # None for a real federation
    metrics: Mapping[str, Stat]
    notes: tuple[str, ...] = ()  # caveats, to be printed wherever the row is
    collapsed: int = 0  # seeds whose last model is no better than chance; see has_collapsed

    @property
    def title(self) -> str:
        """The name, marked if a model of the row has collapsed; such a row is never the best."""
        return f"{self.name} (collapsed)" if self.collapsed else self.name


class HasSummary(Protocol):
    """A finished run in memory, such as `fedraw.Result`."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of the run's summary.json."""
        ...


@dataclass(frozen=True, eq=False)
class Run:
    """One seed, as its log tells."""

    content: Mapping[str, Any]  # as in summary.json
    start: StartRecord
    evaluations: Sequence[EvaluationRecord]
    folder: Path


@dataclass(frozen=True, eq=False)
class Group:
    """One row of a comparison and the runs behind it."""

    row: ComparisonRow
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """The row's name."""
        return self.row.name

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that runs all these seeds again; for a real federation, its settings."""
        spec: dict[str, Any] = dict(self.runs[0].content["spec"])
        if self.runs[0].start.is_server:
            return spec
        return spec | {"run": spec["run"] | {"seeds": list(self.row.seeds)}}


def compare(runs: Iterable[HasSummary | Path | str]) -> list[ComparisonRow]:
    """Compare finished runs, given as results or as folders.

    There is one row per spec, in the order in which specs first appear.
    """
    return [row for row, _ in _rows(list(_summaries(runs)))]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The rows of a comparison with the runs behind them; no two rows have the same name."""
    return [Group(row, [runs[i] for i in own]) for row, own in _rows([run.content for run in runs])]


def notes_of(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """The caveats of these rows, each once."""
    return _distinct(row.notes for row in rows)


def as_json(rows: Sequence[ComparisonRow]) -> dict[str, Any]:
    """The document that `fedraw compare --json` prints."""
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


def identity(name: str, spec: Mapping[str, Any]) -> str:
    """A key that the seeds of one row have in common, and that no other row has."""
    return json.dumps([name, _without_seeds(spec)], sort_keys=True)


def distinct_names(names: Sequence[str], specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append to names that are not unique the keys in which their specs differ.

    >>> specs = [{"strategy": {"buffer": 5}}, {"strategy": {"buffer": 10}}]
    >>> distinct_names(["fedraw", "fedraw"], specs)
    ['fedraw buffer=5', 'fedraw buffer=10']
    """
    settings = [flat(_without_seeds(spec)) for spec in specs]
    result = []
    for name, own in zip(names, settings, strict=True):
        alike = [
            other for other_name, other in zip(names, settings, strict=True) if other_name == name
        ]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        short = [f"{key.removeprefix('strategy.')}={_shown(own.get(key))}" for key in differing]
        result.append(" ".join([name, *short]))
    return result


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all sections by "section.key".

    >>> flat({"version": 1, "run": {"events": 5}})
    {'run.events': 5}
    """
    sections = {name: table for name, table in tables.items() if isinstance(table, Mapping)}
    return {f"{name}.{key}": v for name, table in sections.items() for key, v in table.items()}


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _without_seeds(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec that all seeds of one row share."""
    own: dict[str, Any] = dict(spec)
    own["run"] = {key: value for key, value in own.get("run", {}).items() if key != "seeds"}
    if "server" in own:  # two federations with the same settings are alike, wherever they lie
        own["server"] = {k: v for k, v in own["server"].items() if k != "folder"}
    return own


def _summaries(runs: Iterable[HasSummary | Path | str]) -> Iterator[Mapping[str, Any]]:
    for run in runs:
        if not isinstance(run, Path | str):
            yield run.summary
            continue
        for log in find_logs(Path(run)):
            summary = RunSummary.of(read_log(log, until=end_of_log(log)))
            if not summary.finished:
                raise BadInput(f"{log.parent} is not finished; run it to its end first")
            yield summary.as_dict()


def _rows(
    summaries: Sequence[Mapping[str, Any]],
) -> list[tuple[ComparisonRow, list[int]]]:
    """Each row, and which of the summaries it is made of."""
    by_spec: dict[str, list[int]] = {}
    for i, summary in enumerate(summaries):
        by_spec.setdefault(identity(summary["name"], summary["spec"]), []).append(i)
    if not by_spec:
        raise BadInput("there are no runs; name a folder that 'fedraw run' has written")
    firsts = [summaries[own[0]] for own in by_spec.values()]
    names = distinct_names([s["name"] for s in firsts], [s["spec"] for s in firsts])
    pairs = zip(names, by_spec.values(), strict=True)
    return [(_row(name, [summaries[i] for i in own]), own) for name, own in pairs]


def _row(name: str, group: Sequence[Mapping[str, Any]]) -> ComparisonRow:
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
    return ComparisonRow(name, seeds, stats, notes, collapsed)


def _collapse(name: str, collapsed: int, seeds: Sequence[int | None]) -> str:
    noun = "run" if None in seeds else "seed"
    where = f" in {collapsed} of {len(seeds)} {noun}s" if len(seeds) > 1 else ""
    return (
        f"{name} collapsed{where}: the last model is no better than one that always gives the "
        "same answer, so none of the row's figures is marked as best"
    )


def _distinct(notes: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for some in notes for note in some))
