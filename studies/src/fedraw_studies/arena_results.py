"""The results of the arena, from the cells alone: chosen rates, scores, ranks, differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import erf, exp, pi, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fedraw.eventlog.compare import Stat
from fedraw.eventlog.metrics import has_collapsed
from fedraw.experiment.tuning import DEFAULT_METRICS, Tuning, TuningPoint
from fedraw_studies.arena_design import (
    Arena,
    ArenaMethod,
    ArenaRow,
    artefact_names,
    tuning_label,
)
from fedraw_studies.cells import CellRecord
from fedraw_studies.outcomes import Outcome, RowOutcome, value_of
from fedraw_studies.rules import MeanInterval

ACCURACY = "TailGlobalAcc"
_STEPS = 2000  # of the integral over the range of normal variables


class Score(NamedTuple):
    """The scores of a method in a setting."""

    row: ArenaRow
    rare: Stat  # of the rare labels, or of the worst label
    accuracy: Stat
    done: int
    needed: int
    collapsed: int  # seeds whose last model is no better than chance
    rare_by_seed: Mapping[int, float | None]
    accuracy_by_seed: Mapping[int, float | None]


class Rank(NamedTuple):
    """The mean rank of a method over the settings; 1 is the best."""

    method: str
    rank: float


class Difference(NamedTuple):
    """One method minus another in one setting, seed by seed."""

    setting: str
    one: str
    other: str
    seeds: int
    rare: MeanInterval | None  # None: fewer than two seeds
    accuracy: MeanInterval | None


@dataclass(frozen=True)
class ArenaResults:
    """The results of one data set."""

    arena: Arena
    dataset: str
    tunings: Mapping[str, Tuning]  # by method; only those whose runs are all finished
    scores: tuple[Score, ...]
    remedied: tuple[Score, ...]
    tuning_runs: tuple[int, int]  # finished, and needed

    @property
    def title(self) -> str:
        """The name of the data set."""
        return self.arena.setting_of(self.dataset).title

    @property
    def is_begun(self) -> bool:
        """Whether any run is finished."""
        return bool(self.tuning_runs[0]) or any(score.done for score in self.scores)

    @property
    def methods(self) -> list[ArenaMethod]:
        """The methods with at least one finished run."""
        found = {score.row.method.name for score in self.scores if score.done}
        return [method for method in self.arena.methods if method.name in found]

    def runs(self, remedied: bool = False) -> tuple[int, int]:
        """Return the number of finished runs of the comparison, and the number that it needs."""
        scores = self.remedied if remedied else self.scores
        return sum(own.done for own in scores), sum(own.needed for own in scores)

    def score(self, setting: str, method: str, remedied: bool = False) -> Score:
        """Return the score of a method in a setting."""
        scores = self.remedied if remedied else self.scores
        return next(
            own
            for own in scores
            if (own.row.setting.name, own.row.method.name) == (setting, method)
        )

    def rate(self, method: ArenaMethod) -> float | None:
        """Return the rate with which a method runs in the comparison."""
        return self.arena.rates.get(self.dataset, {}).get(method.name)

    def disagreements(self) -> Iterator[str]:
        """Yield a message for each rate in rates.toml that differs from the tuning's choice."""
        for name, tuning in self.tunings.items():
            best, used = tuning.best, self.arena.rates.get(self.dataset, {}).get(name)
            chosen = None if best is None else next(iter(best.settings.values()))
            if used is not None and chosen != used:
                found = "no value" if chosen is None else f"{chosen:g}"
                yield f"{name}: arena/rates.toml has {used:g}, and the tuning chooses {found}"

    def ranks(self, metric: str) -> tuple[list[Rank], int]:
        """Return the mean ranks of the methods over the settings, and the number of settings.

        `metric` is "rare" or "accuracy". Methods are ranked by the mean over the seeds that all of
        them have in common. A setting counts if there is such a seed; a method is ranked if it has
        a finished run in every setting in which any method has one.
        """
        begun = [own for own in self.arena.settings if self._done_in(own.name)]
        methods = [
            own.name
            for own in self.methods
            if all(self.score(setting.name, own.name).done for setting in begun)
        ]
        columns = []
        for setting in begun:
            by_method = [self._by_seed(setting.name, method, metric) for method in methods]
            seeds = common_seeds(by_method)
            if seeds:
                columns.append(ranked([fmean(own[s] or 0.0 for s in seeds) for own in by_method]))
        if not columns:
            return [], 0
        means = [fmean(own) for own in zip(*columns, strict=True)]
        found = [Rank(*pair) for pair in zip(methods, means, strict=True)]
        return sorted(found, key=lambda own: own.rank), len(columns)

    def differences(self, remedied: bool = False) -> Iterator[Difference]:
        """Compare our methods with others and with ablations in every setting, seed by seed."""
        remedy = self.arena.table["remedy"]["settings"]
        known = {method.name for method in self.arena.methods}
        for setting in self.arena.settings:
            if remedied and setting.name not in remedy:
                continue
            for one, others in self.arena.table["differences"].items():
                for other in (name for name in others if {one, name} <= known):
                    yield self._difference(setting.name, one, other, remedied)

    def _difference(self, setting: str, one: str, other: str, remedied: bool) -> Difference:
        first, second = (self.score(setting, name, remedied) for name in (one, other))
        rare = _paired(first.rare_by_seed, second.rare_by_seed)
        accuracy = _paired(first.accuracy_by_seed, second.accuracy_by_seed)
        return Difference(setting, one, other, len(rare), _interval(rare), _interval(accuracy))

    def _done_in(self, setting: str) -> bool:
        return any(own.done for own in self.scores if own.row.setting.name == setting)

    def _by_seed(self, setting: str, method: str, metric: str) -> Mapping[int, float | None]:
        score = self.score(setting, method)
        return score.rare_by_seed if metric == "rare" else score.accuracy_by_seed


def arena_results(arena: Arena, dataset: str, outcomes: Sequence[Outcome]) -> ArenaResults:
    """Collect the results of a data set from the outcomes of its artefacts."""
    arena = arena.of(dataset)
    by_name = {own.name: own for own in outcomes}
    tuning, plain, remedied = (by_name[name] for name in artefact_names(dataset))
    tunings = {}
    for method in (own for own in arena.methods if own.tuned is not None):
        rows = [tuning.row(tuning_label(method, value)) for value in method.values]
        if not any(row.missing for row in rows):
            tunings[method.name] = tuning_of(arena, dataset, method, rows)
    finished = sum(len(row.seeds) for row in tuning.rows)
    missing = sum(len(row.missing) for row in tuning.rows)
    return ArenaResults(
        arena,
        dataset,
        tunings,
        tuple(_score(row, plain.row(row.label)) for row in arena.rows(dataset)),
        tuple(_score(row, remedied.row(row.label)) for row in arena.rows(dataset, remedied=True)),
        (finished, finished + missing),
    )


def tuning_of(
    arena: Arena, dataset: str, method: ArenaMethod, rows: Sequence[RowOutcome]
) -> Tuning:
    """Score the points of a method's grid as `fedraw tune` does, from the cells of its runs."""
    grid = arena.grid(dataset, method)
    points = [
        _point(settings, list(row.records.values()))
        for settings, row in zip(grid.points, rows, strict=True)
    ]
    return Tuning(grid, tuple(points), DEFAULT_METRICS)


def rates_toml(results: Sequence[ArenaResults]) -> str:
    """Write the chosen rates as the content of arena/rates.toml."""
    lines = ["# The rates that the tuning chose; see arena.toml. The arena writes this file."]
    for own in results:
        chosen = {
            name: next(iter(tuning.best.settings.values()))
            for name, tuning in own.tunings.items()
            if tuning.best is not None
        }
        if chosen:
            lines += ["", f"[{own.dataset}]"]
            lines += [f'"{name}" = {float(value)!r}' for name, value in chosen.items()]
    return "\n".join(lines) + "\n"


def ranked(values: Sequence[float]) -> list[float]:
    """Rank values, the highest first; equal values share the mean of their ranks.

    >>> ranked([5.0, 9.0, 5.0])
    [2.5, 1.0, 2.5]
    """
    return [
        1 + sum(other > own for other in values) + (values.count(own) - 1) / 2
        for values in [list(values)]
        for own in values
    ]


def common_seeds(by_method: Sequence[Mapping[int, float | None]]) -> list[int]:
    """List the seeds for which every method has a value."""
    if not by_method:
        return []
    seeds = set.intersection(*({s for s, v in own.items() if v is not None} for own in by_method))
    return sorted(seeds)


@cache
def critical_difference(methods: int, settings: int) -> float:
    """Return the critical difference of mean ranks at 5 %, by Nemenyi's test.

    It is q √(k (k + 1) / (6 N)) for k methods and N settings, where q is the 95 % quantile of the
    range of k independent normal variables, divided by √2.

    >>> round(critical_difference(2, 6), 2), round(critical_difference(10, 6), 2)
    (0.8, 5.53)
    """
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _range_below(middle, methods) > 0.95 else (middle, high)
    return high / sqrt(2) * sqrt(methods * (methods + 1) / (6 * settings))


def _range_below(width: float, count: int) -> float:
    """Return the probability that the range of `count` normal variables is below a width."""
    points = np.linspace(-8.0, 8.0 + width, _STEPS)
    below = np.array([0.5 * (1 + erf(x / sqrt(2))) for x in points])
    before = np.array([0.5 * (1 + erf((x - width) / sqrt(2))) for x in points])
    density = np.array([exp(-x * x / 2) / sqrt(2 * pi) for x in points])
    return float(np.trapezoid(count * density * (below - before) ** (count - 1), points))


def _score(row: ArenaRow, own: RowOutcome) -> Score:
    rare = own.values(row.setting.metric)
    accuracy = own.values(ACCURACY)
    collapsed = sum(map(_has_collapsed, own.records.values()))
    done, needed = len(own.seeds), len(own.seeds) + len(own.missing)
    one, other = (Stat.of(list(values.values())) for values in (rare, accuracy))
    return Score(row, one, other, done, needed, collapsed, rare, accuracy)


def _point(settings: Mapping[str, float], records: Sequence[CellRecord]) -> TuningPoint:
    values = {metric: [value_of(r, f"Tail{metric}") for r in records] for metric in DEFAULT_METRICS}
    scores = [
        None if None in own else fmean(value for value in own if value is not None)
        for own in zip(*values.values(), strict=True)
    ]
    refused = sum(sum(record.rejected.values()) for record in records)
    unusable = sum(
        _has_collapsed(record) or sum(record.rejected.values()) == record.events
        for record in records
    )
    stats = {metric: Stat.of(own) for metric, own in values.items()}
    return TuningPoint(settings, stats, Stat.of(scores), unusable, refused)


def _has_collapsed(record: CellRecord) -> bool:
    return has_collapsed(record.recall.values(), record.metrics)


def _paired(one: Mapping[int, float | None], other: Mapping[int, float | None]) -> list[float]:
    pairs = [(one[seed], other[seed]) for seed in one if seed in other]
    return [a - b for a, b in pairs if a is not None and b is not None]


def _interval(differences: Sequence[float]) -> MeanInterval | None:
    return MeanInterval.of(differences) if len(differences) > 1 else None
