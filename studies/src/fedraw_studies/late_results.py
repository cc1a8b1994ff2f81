"""The results of the study "Lost, or late?": recall at two lengths, arrivals to marks, standing.

Everything follows from the cells; `late/late.toml` has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, exp, pi, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fedraw.core.types import Floats
from fedraw.eventlog.compare import Stat
from fedraw.eventlog.goals import MARKS, RARE_GOALS, Goal, GoalWatch, Reached
from fedraw.eventlog.metrics import TAIL
from fedraw.eventlog.records import EvaluationRecord
from fedraw_studies.artefacts import Scale
from fedraw_studies.cells import CellRecord
from fedraw_studies.late import LateRow, late_rows
from fedraw_studies.late_standings import Standings, federation
from fedraw_studies.outcomes import Outcome
from fedraw_studies.rules import MeanInterval

# The data sets on which no method passes 50 % reliably, so that half of the best is a mark as well.
HARD = ("ham10000", "isic2019")
FIT_SHARE = 1 / 3  # of the labels must get to 50 % for a fit
FIT_LABELS = 20  # a fit needs so many labels; with fewer, their standings hardly differ
RESAMPLES = 200  # of the bootstrap over seeds


class LateScore(NamedTuple):
    """A method in a setting: its recall at both lengths, and when it reached the marks."""

    row: LateRow
    early: Stat  # AvgRare at the arena's length
    late: Stat  # and at ten times the length
    accuracy_early: Stat
    accuracy_late: Stat
    reached: Mapping[Goal, Reached]
    half: Reached | None  # half of the best late AvgRare; None except on hard data sets
    late_by_seed: Mapping[int, float]

    @property
    def verdict(self) -> str:
        """Whether the rare labels were kept, late or lost by the median run, at 50 %."""
        return self._verdict(self.reached[RARE_GOALS[0]])

    @property
    def half_verdict(self) -> str:
        """The same at half of the best late AvgRare."""
        return "" if self.half is None else self._verdict(self.half)

    def _verdict(self, reached: Reached) -> str:
        middle = reached.median("arrivals")
        if middle is None:
            return "lost"
        return "kept" if middle <= self.row.early else "late"


class StandingFit(NamedTuple):
    """The fit of log10(arrivals to 50 %) = a + b log10(standing) on a data set."""

    family: str
    labels: int  # pairs of a run and a rare label
    reached: int
    slope: float
    error: float | None  # the slope's, from a bootstrap over seeds; None with a single seed
    spread: float  # the standard deviation of the errors, as a factor
    at_tenth: float  # predicted arrivals at standing 0.1


@dataclass(frozen=True)
class LateResults:
    """The results of one data set."""

    dataset: str
    title: str
    scores: tuple[LateScore, ...]
    missing: int
    fits: tuple[StandingFit, ...]
    labels: tuple[int, int]  # rare labels of all runs but FedAvg's: those that got there, and all

    def caught_up(self) -> Iterator[tuple[str, str, MeanInterval]]:
        """Yield FedFa's late AvgRare minus that of each other method, by setting."""
        for own in self.scores:
            if own.row.method.name != "FedFa":
                continue
            for other in self.scores:
                if other.row.setting == own.row.setting and other is not own:
                    seeds = [s for s in own.late_by_seed if s in other.late_by_seed]
                    if len(seeds) > 1:
                        pairs = [own.late_by_seed[s] - other.late_by_seed[s] for s in seeds]
                        yield own.row.setting.name, other.row.method.name, MeanInterval.of(pairs)


# How a method combines updates; the audit's thresholds differ between the two families.
FAMILIES = {
    "averaging models": ("FedFa", "FedRAW"),
    "adding updates": ("FedBuff", "CA2FL", "Replay"),
}


def late_results(dataset: str, scale: Scale, outcome: Outcome, standings: Standings) -> LateResults:
    """Collect the results of a data set from the outcome of its artefact."""
    rows = list(late_rows(dataset, scale))
    records = {row.label: outcome.row(row.label).records for row in rows}
    marks = _half_of_best(rows, records) if dataset in HARD else {}
    scores = [
        _score(row, own, marks.get(row.setting.name)) for row in rows if (own := records[row.label])
    ]
    points = [
        point
        for row in rows
        if row.method.name != "FedAvg"
        for seed, record in records[row.label].items()
        for point in _points(row, seed, record, standings)
    ]
    setting = outcome.artefact.settings[dataset]
    return LateResults(
        dataset,
        setting.title,
        tuple(scores),
        sum(len(outcome.row(row.label).missing) for row in rows),
        tuple(_fits(points)),
        (sum(point.reached for point in points), len(points)),
    )


def evaluations_of(record: CellRecord) -> list[EvaluationRecord]:
    """Return the evaluations of a cell, with the metrics and recalls that it keeps.

    A cell keeps neither the version nor the number of models, so both are 0.
    """
    return [
        EvaluationRecord(
            event=event,
            time=record.times[n],
            version=0,
            server_models=0,
            metrics={"GlobalAcc": everywhere, "AvgRare": rare},
            recall={label: own[n] for label, own in record.rare_curves.items()},
            final=record.final is not None and n == len(record.curve) - 1,
        )
        for n, (event, everywhere, rare) in enumerate(record.curve)
    ]


def reached_by(records: Mapping[int, CellRecord], goal: Goal) -> Reached:
    """Return when the runs of a row reached a goal."""
    costs = []
    for record in records.values():
        watch = GoalWatch(goal)
        watch.observe_all(evaluations_of(record))
        costs.append(watch.costs())
    values = {unit: tuple(own[unit] for own in costs) for unit in ("arrivals", "hours")}
    return Reached(values, tuple(record.events for record in records.values()))


def for_good(records: Mapping[int, CellRecord], goal: Goal) -> Reached:
    """Return from when on no five consecutive evaluations of a run have a mean below a goal."""
    values: dict[str, list[float | None]] = {"arrivals": [], "hours": []}
    for record in records.values():
        evaluations = evaluations_of(record)
        below = [
            n
            for n in range(len(evaluations) - TAIL + 1)
            if goal.first_reached(evaluations[n : n + TAIL]) is None
        ]
        first = below[-1] + 1 if below else 0
        at = evaluations[first] if first + TAIL <= len(evaluations) else None
        values["arrivals"].append(None if at is None else float(at.event))
        values["hours"].append(None if at is None else at.time / 3600)
    own = {unit: tuple(found) for unit, found in values.items()}
    return Reached(own, tuple(record.events for record in records.values()))


def _score(row: LateRow, records: Mapping[int, CellRecord], half: float | None) -> LateScore:
    first = row.early // row.spec.run.evaluate_every
    late = {seed: _tail(own.curve, 2) for seed, own in records.items()}

    def stat(column: int, count: int | None) -> Stat:
        return Stat.of([_tail(own.curve[:count], column) for own in records.values()])

    return LateScore(
        row,
        stat(2, first),
        stat(2, None),
        stat(1, first),
        stat(1, None),
        {goal: reached_by(records, goal) for goal in RARE_GOALS},
        None if half is None else reached_by(records, Goal("AvgRare", half)),
        late,
    )


def _tail(curve: Sequence[tuple[int, float | None, float | None]], column: int) -> float:
    return fmean(float(point[column] or 0.0) for point in curve[-TAIL:])


def _half_of_best(
    rows: Sequence[LateRow], records: Mapping[str, Mapping[int, CellRecord]]
) -> dict[str, float]:
    """Return half of the best late AvgRare of all methods, by setting."""
    best: dict[str, float] = {}
    for row in rows:
        if own := records[row.label]:
            mean = fmean(_tail(record.curve, 2) for record in own.values())
            best[row.setting.name] = max(best.get(row.setting.name, 0.0), mean)
    return {setting: value / 2 for setting, value in best.items()}


class Point(NamedTuple):
    """A rare label of a run: its standing before training, and when it passed 50 %."""

    family: str
    seed: int
    standing: float
    arrivals: float  # or the length of the run, if the label did not get there
    reached: bool


def _points(row: LateRow, seed: int, record: CellRecord, standings: Standings) -> Iterator[Point]:
    by_method = standings.get(federation(row, seed), {})
    family = next(name for name, own in FAMILIES.items() if row.method.name in own)
    for label in record.rare_curves:
        found = Goal(label, float(MARKS[0])).first_reached(evaluations_of(record))
        standing = by_method.get(row.spec.strategy.name, {}).get(label)
        if standing:
            at = record.events if found is None else found.event
            yield Point(family, seed, standing, float(at), found is not None)


def _fits(points: Sequence[Point]) -> Iterator[StandingFit]:
    """Fit all points, then those of each family."""
    groups = {"all": list(points)}
    groups |= {name: [point for point in points if point.family == name] for name in FAMILIES}
    for name, own in groups.items():
        reached = sum(point.reached for point in own)
        if len(own) < FIT_LABELS or reached < FIT_SHARE * len(own):
            continue
        a, b, spread = _fit(own)
        slopes = [_fit(again)[1] for again in _resampled(own)]
        error = float(np.std(slopes, ddof=1)) if slopes else None
        yield StandingFit(name, len(own), reached, b, error, 10**spread, 10 ** (a - b))


def _fit(points: Sequence[Point]) -> tuple[float, float, float]:
    x = np.log10([point.standing for point in points])
    y = np.log10([point.arrivals for point in points])
    return censored_line(x, y, np.array([not point.reached for point in points]))


def _resampled(points: Sequence[Point]) -> Iterator[list[Point]]:
    rng = np.random.default_rng(0)
    by_seed: dict[int, list[Point]] = {}
    for point in points:
        by_seed.setdefault(point.seed, []).append(point)
    seeds = list(by_seed)
    for _ in range(RESAMPLES if len(seeds) > 1 else 0):
        drawn = [by_seed[seeds[n]] for n in rng.integers(len(seeds), size=len(seeds))]
        yield [point for own in drawn for point in own]


def censored_line(x: Floats, y: Floats, censored: np.ndarray) -> tuple[float, float, float]:
    """Fit y = a + b x + e with normal e, where censored y are only known to be larger.

    This is maximum likelihood by the EM algorithm: a censored value is replaced by its expectation
    given that it is larger. Return a, b and the standard deviation of e.

    >>> x = np.array([0.0, 1.0, 2.0, 3.0])
    >>> a, b, _ = censored_line(x, 1 + 2 * x, np.zeros(4, bool))
    >>> round(a, 6), round(b, 6)
    (1.0, 2.0)
    """
    design = np.stack([np.ones_like(x), x], axis=1)
    expected, extra = y.astype(np.float64), np.zeros_like(y, dtype=np.float64)
    line, sd = np.zeros(2, np.float64), 1.0
    for _ in range(500):
        before = line
        line = np.asarray(np.linalg.lstsq(design, expected, rcond=None)[0], np.float64)
        sd = max(1e-6, sqrt(float(np.mean((expected - design @ line) ** 2 + extra))))
        for n in np.flatnonzero(censored):
            mean = float(design[n] @ line)
            z = (float(y[n]) - mean) / sd
            hazard = _hazard(z)
            expected[n] = mean + sd * hazard
            extra[n] = sd * sd * max(0.0, 1 + z * hazard - hazard * hazard)
        if np.abs(line - before).max() < 1e-9:
            break
    return float(line[0]), float(line[1]), sd


def _hazard(z: float) -> float:
    """Return φ(z) / (1 − Φ(z)) of the standard normal distribution."""
    above = 0.5 * erfc(z / sqrt(2))
    return z + 1 / z if above < 1e-12 else exp(-z * z / 2) / sqrt(2 * pi) / above
