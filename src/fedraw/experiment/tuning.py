"""`fedraw.tune`: tries a small grid of settings on tuning seeds, and chooses the best point.

The seeds of the spec are the test seeds. They are not used for the choice, so results on them are
not biased by it.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from fedraw.core.settings import plain, shown
from fedraw.core.table import Table
from fedraw.core.text import several
from fedraw.errors import BadInput, FedrawError, TrainingFailed, nearest
from fedraw.eventlog.compare import Stat, compare, mean_and_sd
from fedraw.eventlog.metrics import QUALITY, TAIL, measured
from fedraw.experiment.cells import Cell, CellProgress, run_cells
from fedraw.experiment.interrupts import interrupting_the_script
from fedraw.experiment.loading import prepare
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.parts import NO_PARTS, Parts
from fedraw.experiment.progress import ProgressLine
from fedraw.experiment.result import SeedResult, accepted_nothing
from fedraw.experiment.simulate import choose, simulate
from fedraw.experiment.spec import Spec, is_key, parse_value, refuse_parts, to_toml
from fedraw.storage.files import atomic_write

# The default score is the mean of these: half for all labels together, half for the rare ones.
# AvgRare alone would choose a model that predicts nothing but rare labels.
DEFAULT_METRICS = ("GlobalAcc", "AvgRare")
# The first words of a spec that `fedraw tune` wrote; the next tuning may replace such a file.
HEADER = "Tuned by 'fedraw tune'"
# The width of the comment, without "# ".
COMMENT_WIDTH = 98
# The sections whose keys can be tuned: the others describe the problem, not the method.
SECTIONS = ("strategy", "training")
# The arguments of `simulate` that `tune` sets itself.
_NOT_SETTINGS = ("spec", "seeds", "jobs", "executor", "address", "data_root", "out", "resume",
                 "force", "progress", "callbacks")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Grid:
    """The points of a grid, the tuning seeds, and the selection rule.

    Args:
        spec: The experiment whose settings are tuned; its seeds are the test seeds.
        over: The values of each key, such as {"strategy.server_lr": [0.5, 1, 2]}.
        seeds: The tuning seeds.
        by: The metrics whose mean is the score of a point; a minus before a name means that
            less is better. None: `DEFAULT_METRICS`, or GlobalAcc if no label is rare.
        last: Score the last model alone, instead of the mean of the last five evaluations.
        events: The length of a tuning run; None: that of the spec.
        own_metrics: The names of the user's own metrics.

    >>> grid = Grid(Spec(), {"strategy.buffer": [5, 10], "training.lr": [0.1]}, seeds=(1, 2))
    >>> grid.points
    [{'strategy.buffer': 5, 'training.lr': 0.1}, {'strategy.buffer': 10, 'training.lr': 0.1}]

    """

    spec: Spec
    over: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]
    by: tuple[str, ...] | None = None
    last: bool = False
    events: int | None = None
    own_metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.over:
            raise BadInput(
                "there is nothing to tune; name a key and its values, such as "
                "strategy.server_lr=0.5,1,2"
            )
        for key, values in self.over.items():
            _refuse_key(key, values)
        if self.spec.training.kind == "none":
            raise BadInput(
                "training.kind = 'none' trains no model, so no point is better than another; use "
                "'sgd'"
            )
        test = [seed for seed in self.seeds if seed in self.spec.run.seeds]
        if test:
            raise BadInput(
                f"seeds: {several(map(str, test))} {'are' if len(test) > 1 else 'is'} in run.seeds "
                "of the spec too, which are the test seeds; tune on other seeds"
            )
        known = {*QUALITY, *self.own_metrics}
        for metric in self.by or ():
            if metric.removeprefix("-") not in known:
                raise BadInput(f"there is no metric {metric!r} to choose by; "
                               f"{nearest(metric.removeprefix('-'), known)}")  # fmt: skip
        self.specs()  # refuses impossible values before the first run

    @property
    def points(self) -> list[dict[str, Any]]:
        """The settings of each point, in the order of the values; the last key varies first."""
        return [
            dict(zip(self.over, own, strict=True)) for own in itertools.product(*self.over.values())
        ]

    def specs(self) -> list[Spec]:
        """Return the spec of each point, with the tuning seeds."""
        run: dict[str, Any] = {"run.seeds": list(self.seeds)}
        if self.events is not None:
            run["run.events"] = self.events
        return [self.spec.with_changes({**run, **point}) for point in self.points]

    def cells(self, folder: Path | None = None) -> list[Cell]:
        """Return all runs: every tuning seed of every point, with one folder per point."""
        pairs = zip(self.points, self.specs(), strict=True)
        return [
            Cell(spec, seed, None if folder is None else folder / _name(point) / f"seed-{seed}")
            for point, spec in pairs
            for seed in self.seeds
        ]

    def __str__(self) -> str:
        """Return the size of the grid, for messages."""
        points, seeds = len(self.points), len(self.seeds)
        events = self.specs()[0].run.events
        return (
            f"{points * seeds} runs of {events:,} events: {points} point{'s' * (points > 1)}, "
            f"{seeds} seed{'s' * (seeds > 1)}"
        )


@dataclass(frozen=True, eq=False)
class TuningPoint:
    """One point of a grid and its metrics.

    Attributes:
        settings: The value of each tuned key.
        metrics: The metrics of the selection rule, over the tuning seeds.
        score: The mean of these metrics, over the tuning seeds.
        collapsed: The number of seeds that ended without a model better than chance.
        refused: The number of refused updates, over all seeds.

    """

    settings: Mapping[str, Any]
    metrics: Mapping[str, Stat]
    score: Stat
    collapsed: int = 0
    refused: int = 0

    def measured(self) -> list[tuple[str, Stat]]:
        """Return the metrics and the score; a single metric is the score itself."""
        alone = [m for m in self.metrics if len(self.metrics) == 1 and not m.startswith("-")]
        return [*self.metrics.items(), *([] if alone else [("score", self.score)])]

    @property
    def is_eligible(self) -> bool:
        """Whether the point can be chosen: it has a score, and no model of it has collapsed."""
        return not self.collapsed and self.score.mean is not None


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of `tune`: the table of all points, and the one that was chosen."""

    grid: Grid
    points: tuple[TuningPoint, ...]
    by: tuple[str, ...]  # the metrics whose mean is the score
    parts: Parts = NO_PARTS

    @property
    def best(self) -> TuningPoint | None:
        """The eligible point with the highest score, the first of equals; None without one."""
        eligible = [point for point in self.points if point.is_eligible]
        return max(eligible, key=lambda point: point.score.mean or 0.0, default=None)

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen value of each key."""
        return dict(self._chosen().settings)

    @property
    def spec(self) -> Spec:
        """The spec with the chosen values, its own events, and its own seeds for the test."""
        return self.grid.spec.with_changes(self.settings)

    @property
    def rule(self) -> str:
        """The selection rule in words."""
        names = " and ".join(self.by)
        score = f"mean of {names}" if len(self.by) > 1 else names
        models = "last model" if self.grid.last else f"mean of the last {TAIL} evaluations"
        return f"highest {score} ({models}) among points without a collapsed model"

    @property
    def table(self) -> Table:
        """One row per point: its settings, metrics, score, and whether it was chosen."""
        rows = []
        for point in self.points:
            row: dict[str, Any] = dict(point.settings)
            for metric, stat in point.measured():
                row |= {metric: stat.mean, f"{metric} sd": stat.sd}
            counts = {"collapsed": point.collapsed, "refused": point.refused}
            rows.append({**row, **counts, "chosen": point is self.best})
        return Table.of_rows(rows)

    def table_text(self) -> str:
        """Format the table: mean ± sd over the tuning seeds, and a star at the chosen point."""
        refused = any(point.refused for point in self.points)
        rows = [
            {_short(key): str(value) for key, value in point.settings.items()}
            | {metric: mean_and_sd(stat) for metric, stat in point.measured()}
            | {"collapsed": f"{point.collapsed} of {len(self.grid.seeds)}"}
            | ({"refused": point.refused} if refused else {})
            | {"": "*" if point is self.best else ""}
            for point in self.points
        ]
        return Table.of_rows(rows).to_text()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the choice: a value at the edge of the grid, collapsed points."""
        found = list(self._edges())
        collapsed = sum(point.collapsed > 0 for point in self.points)
        if collapsed:
            found.append(
                f"{collapsed} of {len(self.points)} points have a collapsed model in at least one "
                "seed and cannot be chosen"
            )
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `fedraw tune --json` prints."""
        best = self.best
        return {
            "chosen": None if best is None else dict(best.settings),
            "by": list(self.by),
            "rule": self.rule,
            "seeds": list(self.grid.seeds),
            "events": self.grid.specs()[0].run.events,
            "points": [
                {
                    "settings": dict(point.settings),
                    "metrics": {key: _json(stat) for key, stat in point.metrics.items()},
                    "score": _json(point.score),
                    "collapsed": point.collapsed,
                    "refused": point.refused,
                }
                for point in self.points
            ],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return the chosen spec as a SPEC.toml, after a comment with the table."""
        refuse_parts(self.parts.names)
        chosen = ", ".join(f"{key} = {value}" for key, value in self.settings.items())
        over = "; ".join(f"{k} = {', '.join(map(str, v))}" for k, v in self.grid.over.items())
        paragraphs = [
            f"{HEADER} over {over}, on seeds {', '.join(map(str, self.grid.seeds))} ({self.grid}). "
            "The seeds of this spec were not used.",
            f"Chosen: {chosen}, the {self.rule}.",
            *(f"Note: {note}." for note in self.notes),
        ]
        lines = [line for text in paragraphs for line in wrap(text, COMMENT_WIDTH)]
        lines += ["", *self.table_text().splitlines()]
        comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
        return f"{comment}\n{to_toml(self.spec.to_dict())}"

    def write(self, path: str | Path, *, replace: bool = False) -> None:
        """Write the chosen spec, with the table as a comment.

        Args:
            path: The file. Only a file that an earlier tuning wrote is replaced.
            replace: Replace any file.

        """
        content = self.to_text()
        if not replace:
            refuse_other_file(Path(path))
        atomic_write(Path(path), content.encode())

    def __repr__(self) -> str:
        best = self.best
        chosen = (
            "nothing" if best is None else several(f"{k} = {v}" for k, v in best.settings.items())
        )
        return "\n".join([f"tuned: {chosen} ({self.grid})", self.table_text(), *self.notes])

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return self.table._repr_html_()

    def _chosen(self) -> TuningPoint:
        best = self.best
        if best is None:
            raise FedrawError(
                "no point can be chosen: every point has a seed whose model is no better than "
                "chance; tune with smaller rates, or with more events"
            )
        return best

    def _edges(self) -> Iterator[str]:
        """Yield a warning for each chosen value at the edge of the grid: a better one may exist.

        A value at the limit of what is possible, such as a momentum of 0, has nothing beyond it.
        """
        best = self.best
        for key, values in self.grid.over.items() if best is not None else ():
            if len(values) < 2 or not all(map(_is_number, values)):
                continue
            assert best is not None
            own, ordered = best.settings[key], sorted(values)
            for end, inner, word, outward in (
                (ordered[0], ordered[1], "lowest", -math.inf),
                (ordered[-1], ordered[-2], "highest", math.inf),
            ):
                if own == end and _goes_on(self.grid.spec, best, key, outward):
                    yield (
                        f"{key} = {own} is the {word} value of the grid, so there may be a better "
                        f"one beyond it; add for example {_next(end, inner):.3g}"
                    )


def tune(  # noqa: PLR0913 - one for each thing that a user may choose
    spec: Spec | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = (1, 2, 3),
    by: str | Sequence[str] | None = None,
    last: bool = False,
    events: int | None = None,
    jobs: int = 1,
    executor: ExecutorKind = "inline",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Tuning:
    """Run a grid of settings on tuning seeds, and choose the best point.

    `fedraw tune` does the same from a file. A point with a model no better than chance in any seed
    is never chosen.

    Args:
        spec: The experiment, such as `fedraw.Spec.from_file("my.toml")`. Its seeds are the test
            seeds; tuning seeds among them are refused.
        over: The values of each key, such as {"strategy.server_lr": [0.5, 1, 2]}. Several keys make
            a grid. Keys are those of [strategy] and [training].
        seeds: The tuning seeds.
        by: The metrics whose mean is maximised, such as "MacroF1" or ["GlobalAcc", "MacroF1"]; a
            minus before a name means that less is better. By default GlobalAcc and AvgRare, or
            GlobalAcc alone if no label is rare.
        last: Whether the score is that of the last model, instead of the mean of the last five
            evaluations, which varies less.
        events: The length of the tuning runs; by default that of the spec.
        jobs: The number of runs in parallel; with the executors "processes" and "ray", how many
            workers train the clients of one run.
        executor: What trains the clients, as in `simulate`.
        data_root: The folder of the public data sets.
        out: The folder for the tuning runs. Without it, nothing is written.
        resume: Continue the unfinished runs in `out`, keep the finished ones, and run new points.
        force: Replace the runs in `out`.
        progress: Show a progress line.
        settings: Any other argument of `simulate`: strategy, data, partition, model, train, …

    >>> tuning = tune(
    ...     strategy="fedbuff", over={"strategy.server_lr": [0.01, 1]}, seeds=[1], events=90)
    >>> tuning.settings, tuning.spec.run.seeds
    ({'strategy.server_lr': 1}, (42, 123, 456))
    >>> tuning.notes[0]
    'strategy.server_lr = 1 is the highest value of the grid, so there may be a better one \
beyond it; add for example 100'

    """
    known = set(inspect.signature(simulate).parameters) - set(_NOT_SETTINGS)
    for name in settings:
        if name not in known:
            raise BadInput(f"tune has no argument {name!r}; {nearest(name, known)}")
    if not isinstance(over, Mapping):
        raise BadInput(
            f"over = {shown(over)} must be the values of each key, such as "
            '{"strategy.server_lr": [0.5, 1, 2]}'
        )
    own, parts = choose(spec, **settings)
    if parts.strategy is not None and any(key.startswith("strategy.") for key in over):
        raise BadInput(
            "strategy is your own object, so the spec has no strategy keys to tune; name "
            "its class through the plugins of a spec, or tune other keys"
        )
    names = (by,) if isinstance(by, str) else tuple(by or ())
    own_seeds = (seeds,) if isinstance(seeds, int) else tuple(plain(seeds))
    values = {key: plain(own_values) for key, own_values in over.items()}
    grid = Grid(own, values, own_seeds, names or None, last, events, tuple(parts.metrics))
    options = Options(
        executor,
        jobs,
        data_root=None if data_root is None else Path(data_root),
        resume=resume,
        force=force,
        keep_log=False,
    )
    cells = grid.cells(None if out is None else Path(out))
    line = ProgressLine(
        [cell.spec.run.events for cell in cells], 1 if options.has_workers else jobs
    )
    with interrupting_the_script(out), closing(line), options.connected():
        return run_grid(grid, cells, options, jobs, line if progress else None, parts)


def run_grid(
    grid: Grid,
    cells: Sequence[Cell],
    options: Options,
    jobs: int | None = None,
    progress: CellProgress | None = None,
    parts: Parts = NO_PARTS,
) -> Tuning:
    """Run the cells of a grid and score its points."""
    results: dict[int, SeedResult] = {}
    failures: list[TrainingFailed] = []

    def keep(number: int, result: SeedResult | FedrawError | OSError) -> None:
        if isinstance(result, SeedResult):
            results[number] = result
        elif isinstance(
            result, TrainingFailed
        ):  # a learning rate that is too high may fail a training
            failures.append(result)
        else:
            raise result

    if parts.data is None:
        prepare(cells[0].spec, options.data_root)
    run_cells(cells, options, jobs, progress, keep, parts)
    if not results:
        raise failures[0]
    count = len(grid.seeds)
    found = [
        [results.get(first + offset) for offset in range(count)]
        for first in range(0, len(cells), count)
    ]
    by = grid.by or _default_metrics([run for runs in found for run in runs if run])
    points = [
        _point(settings, runs, by, grid.last)
        for settings, runs in zip(grid.points, found, strict=True)
    ]
    for metric in by:
        if all(point.metrics[metric].mean is None for point in points):
            raise BadInput(
                f"no run has the metric {metric.removeprefix('-')!r}, so no point can be chosen by "
                "it; choose another metric"
            )
    return Tuning(grid, tuple(points), tuple(by), parts)


def parse_over(text: str) -> tuple[str, list[Any]]:
    """Parse `section.key=value,value,…` from the command line.

    >>> parse_over("strategy.server_lr=0.5,1"), parse_over("strategy.staleness=none,polynomial")
    (('strategy.server_lr', [0.5, 1]), ('strategy.staleness', ['none', 'polynomial']))
    """
    key, separator, values = text.partition("=")
    if not separator or not is_key(key.strip()) or not values.strip():
        raise BadInput(f"--over {text!r} is not of the form section.key=value,value,…")
    return key.strip(), [parse_value(value) for value in values.split(",")]


def refuse_other_file(path: Path) -> None:
    """Refuse to replace a file that was not written by a tuning."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.readline()
    except FileNotFoundError:
        return
    if not start.startswith(f"# {HEADER}"):
        raise BadInput(f"{path} exists and was not written by a tuning; choose another file")


def _refuse_key(key: str, values: Sequence[Any]) -> None:
    section = key.partition(".")[0]
    if not is_key(key):
        raise BadInput(f"{key!r} is not of the form section.key, such as strategy.server_lr")
    if key == "strategy.name":
        raise BadInput(
            "strategy.name is not a setting of a method; tune each method separately, and then "
            "compare them on the test seeds"
        )
    if section not in SECTIONS:
        raise BadInput(
            f"{key} describes the problem, not a method, so points with different values are "
            f"not comparable; tune keys of {' and '.join(f'{name}' for name in SECTIONS)}"
        )
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise BadInput(f"{key} = {shown(values)} must be a list of values")
    twice = next((value for value in values if list(values).count(value) > 1), None)
    if twice is not None:
        raise BadInput(f"{key} has the value {twice!r} twice; give each value once")


def _point(
    settings: Mapping[str, Any],
    runs: Sequence[SeedResult | None],
    metrics: Sequence[str],
    last: bool,
) -> TuningPoint:
    known = [run for run in runs if run is not None]
    collapsed = compare(known)[0].collapsed if known else 0
    unusable = len(runs) - len(known) + sum(map(accepted_nothing, known))
    values = {metric: [_value(run, metric, last) for run in runs] for metric in metrics}
    scores: list[float | None] = []
    for own in zip(*values.values(), strict=True):
        known_values = [value for value in own if value is not None]
        pairs = zip(metrics, known_values, strict=False)
        signed = [-value if metric.startswith("-") else value for metric, value in pairs]
        scores.append(fmean(signed) if len(signed) == len(own) else None)
    refused = sum(sum(run.summary["rejected"].values()) for run in known)
    stats = {metric: Stat.of(own) for metric, own in values.items()}
    return TuningPoint(
        settings, stats, Stat.of(scores), min(len(runs), collapsed + unusable), refused
    )


def _value(run: SeedResult | None, metric: str, last: bool) -> float | None:
    if run is None:
        return None
    values: Mapping[str, float | None] = measured(run.summary) if last else run.summary["tail"]
    return values.get(metric.removeprefix("-"))


def _default_metrics(runs: Sequence[SeedResult]) -> tuple[str, ...]:
    """Return the default metrics that some run has: without rare labels there is no AvgRare."""
    return (
        tuple(
            metric
            for metric in DEFAULT_METRICS
            if any(run.summary["metrics"].get(metric) is not None for run in runs)
        )
        or DEFAULT_METRICS[:1]
    )


def _name(point: Mapping[str, Any]) -> str:
    """Return the name of a point's folder.

    >>> _name({"strategy.server_lr": 0.5, "training.lr": 0.1})
    'server_lr=0.5,training.lr=0.1'
    """
    full = ",".join(f"{_short(key)}={value}" for key, value in point.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", full)
    return safe if safe == full else f"{safe}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def _short(key: str) -> str:
    """Return the name of a key in tables, without the section [strategy]."""
    return key.removeprefix("strategy.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _goes_on(spec: Spec, point: TuningPoint, key: str, outward: float) -> bool:
    """Return whether the key may have a value beyond the point's: the next float or integer."""
    value = point.settings[key]
    for beyond in (math.nextafter(value, outward), value + math.copysign(1, outward)):
        with suppress(BadInput):
            whole = isinstance(value, int) and beyond == int(beyond)
            spec.with_changes({**point.settings, key: int(beyond) if whole else beyond})
            return True
    return False


def _next(end: float, inner: float) -> float:
    """Continue the values of a grid: by the same factor, or by the same step.

    >>> _next(3, 1.5), _next(0.25, 0.5), _next(-1, 1)
    (6.0, 0.125, -3)
    """
    return end * end / inner if end > 0 and inner > 0 else end + (end - inner)


def _json(stat: Stat) -> dict[str, Any]:
    return {"mean": stat.mean, "sd": stat.sd, "values": list(stat.values)}
