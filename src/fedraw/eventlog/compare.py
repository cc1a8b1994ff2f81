"""Compares runs: one row per spec, with mean and standard deviation over its seeds.

A metric is the mean of the last five evaluations, or on request that of the last model. Beside the
metrics stand the arrivals until the rare labels were recognised.

A comparison has notes about its weaknesses, such as rows with different budgets or rare labels, and
models no better than chance. `paired` compares two rows seed by seed.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol, overload, runtime_checkable

from fedraw.core.intervals import student_quantile
from fedraw.core.removed import without_neutral
from fedraw.core.settings import shown
from fedraw.core.table import Table
from fedraw.core.text import several
from fedraw.errors import BadInput, nearest
from fedraw.eventlog.goals import RARE_GOALS, Goal, GoalWatch, Reached
from fedraw.eventlog.log_file import find_logs
from fedraw.eventlog.metrics import (
    METRICS,
    cost_columns,
    has_collapsed,
    is_shown_unasked,
    majority_share,
    measured,
)
from fedraw.eventlog.records import EvaluationRecord, StartRecord
from fedraw.eventlog.state import RunState


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation; None where a seed has no value.

    A single value has no standard deviation.
    """

    mean: float | None
    sd: float | None
    values: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Stat:
        """Return the statistics of one value per seed.

        >>> Stat.of([1.0, 3.0])
        Stat(mean=2.0, sd=1.414..., values=(1.0, 3.0))
        """
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, None, tuple(values))
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, tuple(values))


@dataclass(frozen=True)
class ComparisonRow:
    """One spec with all its seeds."""

    name: str
    seeds: tuple[int | None, ...]  # None for a real federation
    metrics: Mapping[str, Stat]
    notes: tuple[str, ...] = ()  # caveats for every table that shows the row
    collapsed: int = 0  # seeds whose last model is no better than chance; see has_collapsed
    events: tuple[int, ...] = ()  # by seed: the updates of the spec, or those that a server got
    data: tuple[str | None, ...] = ()  # by seed: the SHA-256 of the data, or the data's name
    rare_labels: tuple[tuple[str, ...] | None, ...] = ()  # by seed; None in an older summary.json
    reached: Mapping[Goal, Reached] = field(default_factory=dict)  # of AvgRare, and those asked for
    last: bool | None = None  # of the last model, not of the last five evaluations; None: unknown

    @property
    def title(self) -> str:
        """The name, marked if a model of the row has collapsed; such a row is never the best."""
        return f"{self.name} (collapsed)" if self.collapsed else self.name

    def goal_columns(self) -> dict[str, tuple[Reached, str]]:
        """Return when each goal was reached, by the name of its column, with the column's unit."""
        return {
            f"{unit} to {goal_words(goal)}": (reached, unit)
            for goal, reached in self.reached.items()
            for unit in reached.values
        }


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two rows in one metric, seed by seed.

    `low` and `high` are the ends of Student's 95 % interval of the mean difference; they are None
    for a single seed. The interval assumes that the seeds are a random sample and the differences
    roughly normal. It holds for one metric and one pair of rows: among twenty such intervals, one
    is expected to miss the true difference.
    """

    metric: str
    one: str
    other: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]  # one minus other
    mean: float
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


@dataclass(frozen=True)
class Comparison(Sequence[ComparisonRow]):
    """A comparison is a sequence of rows; a row can also be accessed by its name."""

    rows: tuple[ComparisonRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, row: int | str) -> ComparisonRow: ...
    @overload
    def __getitem__(self, row: slice) -> Comparison: ...
    def __getitem__(self, row: int | str | slice) -> ComparisonRow | Comparison:
        if isinstance(row, slice):
            return Comparison(self.rows[row])
        if isinstance(row, int):
            return self.rows[row]
        names = {own.name: own for own in self.rows}
        if row not in names:
            raise BadInput(f"the comparison has no row {row!r}; {nearest(row, names)}")
        return names[row]

    @property
    def notes(self) -> tuple[str, ...]:
        """The caveats of all rows, and the differences of their budgets and rare labels."""
        return notes_of(self.rows)

    def sorted(self, metric: str) -> Comparison:
        """Return the rows by their mean, highest first; collapsed and undefined rows come last.

        The metric "name" sorts by the names of the rows, and a goal such as "arrivals to 50 %" by
        the median, lowest first.
        """
        if metric == "name":
            return Comparison(tuple(sorted(self.rows, key=lambda row: row.name)))
        self.require([metric])

        def place(row: ComparisonRow) -> tuple[bool, bool, float]:
            if metric in (goals := row.goal_columns()):
                reached, unit = goals[metric]
                middle = reached.median(unit)
                return middle is None, row.collapsed > 0, middle or 0.0
            stat = row.metrics.get(metric)
            mean = stat.mean if stat else None
            return mean is None, row.collapsed > 0, -(mean or 0.0)

        return Comparison(tuple(sorted(self.rows, key=place)))

    def require(self, metrics: Iterable[str]) -> None:
        """Refuse metrics that no row has."""
        known = {
            key for row in self.rows for key, stat in row.metrics.items() if stat.mean is not None
        }
        known |= {column for row in self.rows for column in row.goal_columns()}
        for metric in metrics:
            if metric not in known:
                raise BadInput(f"no run has the metric {metric!r}; {nearest(metric, known)}")

    def paired(self, one: str, other: str, metric: str = "AvgRare") -> PairedDifference:
        """Return the difference between two rows, given by name, over their common seeds."""
        return paired(self[one], self[other], metric)

    def table(self) -> Table:
        """Return a table with the mean and standard deviation of every metric of each row.

        For each goal it has the median over the seeds, and how many seeds reached it.
        """
        rows = []
        for row in self.rows:
            own: dict[str, Any] = {"name": row.name, "seeds": len(row.seeds)}
            for key, stat in row.metrics.items():
                own |= {key: stat.mean, f"{key} sd": stat.sd}
            for column, (reached, unit) in row.goal_columns().items():
                own[column] = reached.median(unit)
            for goal, reached in row.reached.items():
                own[f"reached {goal_words(goal)}"] = reached.count
            rows.append(own | {"collapsed": row.collapsed})
        table = Table.of_rows(rows)
        kept = [c for c in table.columns if any(value is not None for value in table[c])]
        return Table({column: table[column] for column in kept})

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame; this needs `pip install pandas`."""
        return self.table().to_frame()

    def __repr__(self) -> str:
        return "\n".join([repr(self._short()), *self.notes])

    def _repr_html_(self) -> str:
        """Return the comparison as HTML for a notebook."""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return self._short()._repr_html_() + notes

    def _short(self) -> Table:
        """Return a table of the main metrics, as mean ± sd."""
        measured = {
            k: None for row in self.rows for k, s in row.metrics.items() if s.mean is not None
        }
        shown = [key for key in METRICS if key in measured][:6]
        shown += filter(is_shown_unasked, measured)
        rows = [
            {"name": row.title, "seeds": len(row.seeds)}
            | {key: mean_and_sd(row.metrics.get(key)) for key in shown[:2]}
            | {f"arrivals to {goal_words(goal)}": str(own) for goal, own in row.reached.items()}
            | {key: mean_and_sd(row.metrics.get(key)) for key in shown[2:]}
            for row in self.rows
        ]
        return Table.of_rows(rows)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `fedraw compare --json` prints."""
        rows = [
            {
                "name": row.name,
                "seeds": list(row.seeds),
                "events": list(row.events),
                "data": list(row.data),
                "rare_labels": [None if own is None else list(own) for own in row.rare_labels],
                "metrics": {
                    key: {"mean": stat.mean, "sd": stat.sd, "values": list(stat.values)}
                    for key, stat in row.metrics.items()
                },
                "reached": {
                    str(goal): {
                        "seeds": own.count,
                        "within": list(own.within),
                        **{
                            unit: {"median": own.median(unit), "values": list(values)}
                            for unit, values in own.values.items()
                        },
                    }
                    for goal, own in row.reached.items()
                },
                "notes": list(row.notes),
                "collapsed": row.collapsed,
            }
            for row in self.rows
        ]
        return {"rows": rows, "notes": list(self.notes)}


def goal_words(goal: Goal) -> str:
    """Return a goal as the words of a column; AvgRare goes without saying.

    >>> goal_words(Goal("AvgRare", 50.0)), goal_words(Goal("8", 80.0))
    ('50 %', '8>=80')
    """
    return f"{goal.value:g} %" if goal.metric == "AvgRare" else str(goal)


def mean_and_sd(stat: Stat | None) -> str | None:
    """Return "mean ± sd" as text, the mean alone for one seed, or None without a value.

    >>> mean_and_sd(Stat.of([1.0, 3.0])), mean_and_sd(Stat.of([1.0]))
    ('2.0 ± 1.4', '1.0')
    """
    if stat is None or stat.mean is None:
        return None
    return f"{stat.mean:.1f}" if stat.sd is None else f"{stat.mean:.1f} ± {stat.sd:.1f}"


@runtime_checkable
class HasSummary(Protocol):
    """One finished seed in memory."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of the seed's summary.json."""
        ...


@runtime_checkable
class HasSummaries(Protocol):
    """Several finished seeds in memory."""

    @property
    def summaries(self) -> Sequence[Mapping[str, Any]]:
        """The content of each seed's summary.json."""
        ...


AnyRun = HasSummary | HasSummaries | Path | str


@dataclass(frozen=True, eq=False)
class SeedRun:
    """One seed, read from its log."""

    summary: Mapping[str, Any]
    start: StartRecord
    evaluations: Sequence[EvaluationRecord]
    folder: Path

    @classmethod
    def of(cls, state: RunState, folder: Path) -> SeedRun:
        """Return the run of a log that has begun."""
        assert state.start is not None
        return cls(state.summary(), state.start, state.evaluations, folder)


@dataclass(frozen=True, eq=False)
class Group:
    """One row of a comparison and its runs."""

    row: ComparisonRow
    runs: Sequence[SeedRun]

    @property
    def name(self) -> str:
        """The row's name."""
        return self.row.name

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that reproduces all these seeds; for a real federation, its settings."""
        spec: dict[str, Any] = dict(self.runs[0].summary["spec"])
        if self.runs[0].start.is_server:
            return spec
        return spec | {"run": {**spec.get("run", {}), "seeds": list(self.row.seeds)}}


def compare(
    runs: Mapping[str, AnyRun | Sequence[AnyRun]] | Iterable[AnyRun],
    until: Sequence[str] = (),
    *,
    last: bool = False,
) -> Comparison:
    """Compare finished runs, given as results or as folders.

    There is one row per spec, in the order in which specs first appear. The keys of a mapping are
    the names of the rows; then all runs under one name must have the same spec.

    Metrics are means of the last five evaluations; with `last` they are those of the last model.
    Rows say when AvgRare passed 50 and 80 %, and each goal in `until`, such as "GlobalAcc>=90" or
    "8>=50" for the recall of label 8, adds when that was reached: the first evaluation from which
    the mean of five consecutive ones is at least the goal.

    >>> compare({"mine": "runs/none"})
    Traceback (most recent call last):
    fedraw.errors.BadInput: runs/none does not exist; name a folder that 'fedraw run' has written
    """
    if isinstance(runs, str | Path):
        runs = [runs]
    goals = _goals(until)
    if not isinstance(runs, Iterable):
        raise _not_a_run(runs)
    if not isinstance(runs, Mapping):
        found = list(_summaries(runs, goals))
        return Comparison(tuple(row for row, _ in _rows(found, goals, last=last)))
    rows = []
    for name, run in runs.items():
        if isinstance(run, str | Path | HasSummaries | HasSummary):
            own = compare([run], until, last=last)
        else:
            own = compare(run, until, last=last)
        if len(own) > 1:
            raise BadInput(
                f"{name!r} has {len(own)} different specs ({several(r.name for r in own)}); "
                "give each spec its own name"
            )
        rows.append(_renamed(own[0], name))
    if not rows:
        raise BadInput(
            "there are no runs to compare; give at least one result, or the folder of a run"
        )
    return Comparison(tuple(rows))


def paired(one: ComparisonRow, other: ComparisonRow, metric: str) -> PairedDifference:
    """Return the difference in a metric between two rows, over their common seeds.

    >>> better = ComparisonRow("b", (1, 2, 3), {"AvgRare": Stat.of([52.0, 61.0, 73.0])})
    >>> worse = ComparisonRow("a", (1, 2, 4), {"AvgRare": Stat.of([50.0, 57.0, 1.0])})
    >>> found = paired(better, worse, "AvgRare")
    >>> found.seeds, found.differences, found.mean, round(found.low, 2), round(found.high, 2)
    ((1, 2), (2.0, 4.0), 3.0, -9.71, 15.71)
    """
    Comparison((one,)).require([metric])
    Comparison((other,)).require([metric])
    common = [seed for seed in one.seeds if seed is not None and seed in other.seeds]
    if not common:
        raise BadInput(
            f"{one.name} and {other.name} have no common seed and cannot be paired; run both with "
            "the same seeds"
        )
    differences = []
    for seed in common:
        if _of_seed(one, one.data, seed) != _of_seed(other, other.data, seed):
            raise BadInput(
                f"{one.name} and {other.name} have different data under seed {seed} and cannot be "
                "paired; run both on the same data"
            )
        mine, theirs = (_of_seed(r, r.metrics[metric].values, seed) for r in (one, other))
        differences.append(mine - theirs)
    mean, count = fmean(differences), len(differences)
    low = high = None
    if count > 1:
        reach = student_quantile(count - 1) * stdev(differences) / sqrt(count)
        low, high = mean - reach, mean + reach
    seeds = tuple(common)
    return PairedDifference(
        metric, one.name, other.name, seeds, tuple(differences), mean, low, high
    )


def leader(rows: Sequence[ComparisonRow], metric: str) -> ComparisonRow | None:
    """Return the row whose mean is clearly above that of every other row, or None.

    "Clearly" means that the 95 % interval of the paired differences lies above 0. Rows with a
    collapsed model do not take part.
    """
    known = [row for row in rows if (stat := row.metrics.get(metric)) and stat.mean is not None]
    sound = sorted((row for row in known if not row.collapsed), key=lambda row: _mean(row, metric))
    if len(sound) < 2:
        return None
    *others, best = sound
    try:
        differences = [paired(best, other, metric) for other in others]
    except BadInput:  # without common seeds or data, nothing supports a star
        return None
    return best if all(own.is_clear and own.mean > 0 for own in differences) else None


def _mean(row: ComparisonRow, metric: str) -> float:
    return row.metrics[metric].mean or 0.0


def grouped(runs: Sequence[SeedRun], *, last: bool = False) -> list[Group]:
    """Return the rows of a comparison with their runs; the names of the rows are distinct."""
    rows = _rows([{**run.summary, "folder": run.folder} for run in runs], last=last)
    return [Group(row, [runs[i] for i in own]) for row, own in rows]


def reached_of(goal: Goal, summaries: Sequence[Mapping[str, Any]]) -> Reached | None:
    """Return when the seeds of a row reached a goal; None if one of them did not measure it."""
    costs = [summary.get("reached", {}).get(str(goal)) for summary in summaries]
    if None in costs or not costs:
        return None
    by_unit = {unit: tuple(own[unit] for own in costs) for unit in costs[0]}
    spacing = None  # a model that becomes final is evaluated at intervals of its own
    if not any(summary.get("final") for summary in summaries):
        spacing = summaries[0]["spec"].get("run", {}).get("evaluate_every")
    return Reached(by_unit, tuple(map(_within, summaries)), spacing)


def _within(summary: Mapping[str, Any]) -> int:
    """Return the arrivals of a run; those of its spec if its model was final before."""
    return _events(summary) if summary.get("final") else summary["events"]


def notes_of(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Return the caveats of these rows, each once, and what else makes them hard to compare.

    >>> notes_of([ComparisonRow("a", (1,), {}, ("odd", "a is odd")), ComparisonRow("b", (1,), {})])
    ('a: odd', 'a is odd')
    """
    notes = []
    for note in _distinct(row.notes for row in rows):
        own = [row.name for row in rows if note in row.notes]
        named = len(own) == len(rows) or any(note.startswith(name) for name in own)
        notes.append(note if named else f"{several(own)}: {note}")
    return (*notes, *budget_notes(rows))


def budget_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return notes about differences between the rows in events, seeds, data and rare labels.

    >>> budget_notes([ComparisonRow("a", (1, 2), {}, events=(300, 300)),
    ...               ComparisonRow("b", (1,), {}, events=(600,))])
    ['different events: 300 in a; 600 in b', 'different seeds: 1, 2 in a; 1 in b']
    """
    simulated = [row for row in rows if None not in row.seeds]
    events = {row.name: _listed(dict.fromkeys(row.events)) for row in rows if row.events}
    seeds = {
        row.name: _listed(sorted(seed for seed in row.seeds if seed is not None))
        for row in simulated
    }
    facts = [("events", events), ("seeds", seeds)]
    for seed in dict.fromkeys(seed for row in simulated for seed in row.seeds):
        own = {r.name: _of_seed(r, r.data, seed) for r in simulated if seed in r.seeds}
        facts.append((f"data under seed {seed}", {k: v[:12] for k, v in own.items() if v}))
    facts += [
        (
            f"{what}, so metrics such as AvgRare are not comparable",
            {k: ", ".join(v) or "none" for k, v in own.items()},
        )
        for what, own in _rare_labels(rows)
    ]
    return [
        f"different {what}: {_by_value(values)}"
        for what, values in facts
        if len(set(values.values())) > 1
    ]


def _rare_labels(
    rows: Sequence[ComparisonRow],
) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield the rare labels by row; if they depend on the seed, those under each seed."""
    known = [(row, [own for own in row.rare_labels if own is not None]) for row in rows]
    if all(len(set(found)) <= 1 for _, found in known):
        yield "rare labels", {row.name: found[0] for row, found in known if found}
        return
    for seed in dict.fromkeys(seed for row in rows for seed in row.seeds if seed is not None):
        own = {r.name: _of_seed(r, r.rare_labels, seed) for r in rows if seed in r.seeds}
        yield f"rare labels under seed {seed}", {k: v for k, v in own.items() if v is not None}


def identity(name: str, spec: Mapping[str, Any]) -> str:
    """Return a key that is the same for all seeds of a row, and differs between rows."""
    return json.dumps([name, _without_seeds(spec)], sort_keys=True)


def distinct_names(
    names: Sequence[str],
    specs: Sequence[Mapping[str, Any]],
    folders: Sequence[Path | None] = (),
) -> list[str]:
    """Return distinct names: equal names get their folder, or else the settings that differ.

    `folders` are those of the logs. The folder of a run comes first, if all runs of the same name
    have folders of different names. Otherwise the name is followed by settings. A spec without a
    setting is not told so. A section that another spec lacks is named by its first setting.

    >>> specs = [{"strategy": {"buffer": 5}}, {"strategy": {"buffer": 10}}]
    >>> distinct_names(["fedraw", "fedraw"], specs)
    ['fedraw buffer=5', 'fedraw buffer=10']
    >>> folders = [Path("runs/k5/seed-1"), Path("runs/k10/seed-1")]
    >>> distinct_names(["fedraw", "fedraw"], specs, folders)
    ['k5: fedraw', 'k10: fedraw']
    >>> specs = [{"run": {}}, {"run": {}, "calibration": {"kind": "ccvr", "samples": 100}}]
    >>> distinct_names(["fedfa", "fedfa"], specs)
    ['fedfa', 'fedfa calibration.kind=ccvr']
    """
    settings = [_without_seeds(spec) for spec in specs]
    places = [None if folder is None else run_folder(folder).name for folder in folders]
    result = []
    for n, (name, own) in enumerate(zip(names, settings, strict=True)):
        same = [place for other, place in zip(names, places, strict=False) if other == name]
        if len(same) > 1 and None not in same and len(set(same)) == len(same):
            result.append(f"{places[n]}: {name}")
            continue
        alike = [
            other for other_name, other in zip(names, settings, strict=True) if other_name == name
        ]
        short = [
            f"{key.removeprefix('strategy.')}={_shown(value)}"
            for key, value in flat(own).items()
            if _tells_apart(key, own, alike)
        ]
        result.append(" ".join([name, *short]))
    return result


def run_folder(folder: Path) -> Path:
    """Return the folder of a run, given that of one of its seeds or of a server."""
    return folder.parent if folder.name.startswith("seed-") else folder


def _tells_apart(key: str, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the name of a row needs a setting, given all rows of the same name."""
    section, name = key.split(".", 1)
    have = [other for other in others if section in other]
    if len(have) < len(others) and name == next(iter(own[section])):
        return True
    return any(other[section].get(name) != own[section][name] for other in have)


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all sections by "section.key".

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
    """Return the part of a spec that all seeds of one row share."""
    own = without_neutral(spec)
    own["run"] = {key: value for key, value in own.get("run", {}).items() if key != "seeds"}
    if "server" in own:  # federations with the same settings are one row, whatever their folders
        own["server"] = {k: v for k, v in own["server"].items() if k != "folder"}
    return own


def _summaries(runs: Iterable[AnyRun], goals: Sequence[Goal] = ()) -> Iterator[Mapping[str, Any]]:
    for run in runs:
        if isinstance(run, HasSummaries):
            seeds = run if goals and isinstance(run, Iterable) else run.summaries
            yield from (_with_goals(seed, goals) for seed in seeds)
        elif isinstance(run, HasSummary):
            yield _with_goals(run, goals)
        elif isinstance(run, str | Path):
            yield from (_with_goals(_read(log), goals) for log in find_logs(Path(run)))
        else:
            raise _not_a_run(run)


def _goals(until: Any) -> list[Goal]:
    texts = [until] if isinstance(until, str) else until
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise BadInput(
            f"until = {shown(until)} must be goals such as 'AvgRare>=50'; to compare several runs, "
            "write compare([one, other])"
        )
    return [Goal.parse(text) for text in texts]


def _not_a_run(thing: object) -> BadInput:
    return BadInput(
        f"{shown(thing)} is not a run; give results or folders, such as compare([one, other])"
    )


def _read(log: Path) -> SeedRun:
    state = RunState.read(log)
    if not state.finished:
        raise BadInput(
            f"{log.parent} is not finished; continue it with resume=True, or leave it out"
        )
    return SeedRun.of(state, log.parent)


def _with_goals(run: HasSummary | Mapping[str, Any], goals: Sequence[Goal]) -> Mapping[str, Any]:
    """Return a summary with its folder, if it has one, and the costs of reaching each goal."""
    if isinstance(run, SeedRun):
        run = replace(run, summary={**run.summary, "folder": run.folder})
    if not goals:
        return run if isinstance(run, Mapping) else run.summary
    evaluations = getattr(run, "evaluations", None)
    if isinstance(run, Mapping) or evaluations is None:
        raise BadInput(f"a goal such as {goals[0]} needs the evaluations of a run; give its folder")
    watches = [GoalWatch(goal) for goal in goals]
    for watch in watches:
        watch.goal.require(run.summary["name"], evaluations)
        watch.observe_all(evaluations)
    asked = {str(watch.goal): watch.costs() for watch in watches}
    return {**run.summary, "reached": {**run.summary["reached"], **asked}}


def _rows(
    summaries: Sequence[Mapping[str, Any]], goals: Sequence[Goal] = (), *, last: bool
) -> list[tuple[ComparisonRow, list[int]]]:
    """Return each row with the positions of its summaries."""
    by_spec: dict[str, list[int]] = {}
    for i, summary in enumerate(summaries):
        by_spec.setdefault(identity(summary["name"], summary["spec"]), []).append(i)
    if not by_spec:
        raise BadInput(
            "there are no runs to compare; give at least one result, or the folder of a run"
        )
    firsts = [summaries[own[0]] for own in by_spec.values()]
    names = distinct_names(
        [s["name"] for s in firsts], [s["spec"] for s in firsts], [s.get("folder") for s in firsts]
    )
    pairs = zip(names, by_spec.values(), strict=True)
    shown = dict.fromkeys((*RARE_GOALS, *goals))
    return [(_row(name, [summaries[i] for i in own], shown, last), own) for name, own in pairs]


def _row(
    name: str, group: Sequence[Mapping[str, Any]], goals: Iterable[Goal], last: bool
) -> ComparisonRow:
    seeds = tuple(summary["seed"] for summary in group)
    repeated = next((seed for seed in seeds if seed is not None and seeds.count(seed) > 1), None)
    if repeated is not None:
        raise BadInput(f"{name}, seed {repeated} is given twice; name each run once")
    metrics = [_measured(summary, last) for summary in group]
    reached = {goal: own for goal in goals if (own := reached_of(goal, group)) is not None}
    names = dict.fromkeys(name for own in metrics for name in own)
    stats = {key: Stat.of([own.get(key) for own in metrics]) for key in names}
    collapsed = [s for s in group if has_collapsed(s.get("recall", {}).values(), s["metrics"])]
    notes = [*_distinct(summary.get("notes", ()) for summary in group)]
    notes += _chance_notes(name, group, len(collapsed), stats)
    return ComparisonRow(
        name,
        seeds,
        stats,
        tuple(notes),
        len(collapsed),
        tuple(map(_events, group)),
        tuple(map(_data, group)),
        tuple(map(_rare, group)),
        reached,
        last,
    )


def _measured(summary: Mapping[str, Any], last: bool) -> dict[str, float | None]:
    """Return all metrics of a run by the names of their columns, including the user's own.

    Metrics of evaluations are means of the last five, unless `last` asks for the last model's.
    """
    training = {f"training {key}": n for key, n in (summary.get("training") or {}).items()}
    found = {**measured(summary), **training, **cost_columns(summary.get("costs"))}
    return found if last else {**found, **{k: v for k, v in summary["tail"].items() if k in found}}


def _chance_notes(
    name: str, group: Sequence[Mapping[str, Any]], collapsed: int, stats: Mapping[str, Stat]
) -> Iterator[str]:
    """Yield notes about models that have collapsed or are no better than the commonest label."""
    if collapsed:
        noun = "run" if any(summary["seed"] is None for summary in group) else "seed"
        where = f" in {collapsed} of {len(group)} {noun}s" if len(group) > 1 else ""
        yield (
            f"{name} collapsed{where}: the last model is no better than one that always gives the "
            "same answer, so none of the row's figures is marked as best"
        )
        return
    shares = [majority_share(summary.get("confusion") or {}) for summary in group]
    overall, commonest = stats.get("GlobalAcc", Stat.of([])).mean, Stat.of(shares).mean
    if overall is not None and commonest is not None and overall <= commonest:
        yield (
            f"{name}: its GlobalAcc of {overall:.1f} is no higher than the {commonest:.1f} of a "
            "model that always answers the commonest label"
        )


def _events(summary: Mapping[str, Any]) -> int:
    """Return the events of a finished run's spec; its last round may have a few more."""
    wanted = summary["spec"].get("run", {}).get("events")
    happened: int = summary["events"]
    complete = summary.get("finished") and not summary.get("ended")
    return wanted if isinstance(wanted, int) and complete else happened


def _data(summary: Mapping[str, Any]) -> str | None:
    found = (summary.get("data") or {}).get("sha256") or summary["spec"].get("data", {}).get("name")
    return None if found is None else str(found)


def _rare(summary: Mapping[str, Any]) -> tuple[str, ...] | None:
    found = summary.get("rare_labels")
    return None if found is None else tuple(sorted(map(str, found)))


def _renamed(row: ComparisonRow, name: str) -> ComparisonRow:
    notes = (note.replace(row.name, name, 1) if note.startswith(row.name) else note
             for note in row.notes)  # fmt: skip
    return replace(row, name=name, notes=tuple(notes))


def _of_seed(row: ComparisonRow, values: Sequence[Any], seed: int | None) -> Any:
    return values[row.seeds.index(seed)] if values else None


def _listed(values: Iterable[object]) -> str:
    return several(map(str, values), most=8)


def _by_value(values: Mapping[str, str]) -> str:
    """Return a text that lists the rows with each value."""
    alike: dict[str, list[str]] = {}
    for name, value in values.items():
        alike.setdefault(value, []).append(name)
    return "; ".join(f"{value} in {several(names)}" for value, names in alike.items())


def _distinct(notes: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for some in notes for note in some))
