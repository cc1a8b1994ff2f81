"""Goals: when a run reached a value, which a value at its end does not say."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from fedraw.core.text import counted, duration
from fedraw.errors import BadInput, nearest
from fedraw.eventlog.metrics import TAIL, cost_columns, measured
from fedraw.eventlog.records import EvaluationRecord, to_fields

# The recalls, in percent, whose arrivals every table shows.
MARKS = (50, 80)


@dataclass(frozen=True)
class Goal:
    """A value that a metric, or the recall of a label, must reach.

    >>> goal = Goal.parse("AvgRare >= 50")
    >>> goal
    Goal(metric='AvgRare', value=50.0)
    >>> str(goal)
    'AvgRare>=50'
    """

    metric: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read a goal such as AvgRare>=50."""
        parts = re.fullmatch(r"\s*(.+?)\s*(?:>=|≥)\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*", text)
        try:
            if parts is not None:
                return cls(parts[1], float(parts[2]))
        except ValueError:
            pass
        raise BadInput(f"{text!r} is not a goal; write a metric and a value, such as AvgRare>=50")

    def __str__(self) -> str:
        return f"{self.metric}>={self.value:g}"

    def value_of(self, evaluation: EvaluationRecord) -> float | None:
        """Return the metric of an evaluation, or the recall of the label with that name."""
        if self.metric in evaluation.metrics:
            return evaluation.metrics[self.metric]
        found = measured(to_fields(evaluation))
        return found[self.metric] if self.metric in found else evaluation.recall.get(self.metric)

    def first_reached(self, evaluations: Iterable[EvaluationRecord]) -> EvaluationRecord | None:
        """Return the evaluation at which the goal was reached, or None; see `GoalWatch`."""
        watch = GoalWatch(self)
        watch.observe_all(evaluations)
        return watch.reached

    def require(self, name: str, evaluations: Sequence[EvaluationRecord]) -> None:
        """Refuse a run of this name with too few evaluations, or without the metric."""
        if len(evaluations) < TAIL and not any(own.final for own in evaluations):
            raise BadInput(
                f"{name} has {counted(len(evaluations), 'evaluation')}, and the goal {self} needs "
                f"{TAIL} consecutive ones; evaluate more often (evaluate_every)"
            )
        known = {metric for e in evaluations for metric in (*measured(to_fields(e)), *e.recall)}
        if self.metric not in known:
            raise BadInput(
                f"{name} has no evaluation with the metric {self.metric!r}; "
                f"{nearest(self.metric, known)}"
            )


# The goals that every table shows for runs with rare labels.
RARE_GOALS = tuple(Goal("AvgRare", float(mark)) for mark in MARKS)


@dataclass
class GoalWatch:
    """Watches the evaluations of a run until a goal is reached.

    A goal is reached at the first evaluation from which the mean of five consecutive ones is at
    least the goal's value. A single lucky evaluation therefore does not count. The evaluation of a
    final model stands for five, because all later ones would be the same.
    """

    goal: Goal
    reached: EvaluationRecord | None = None
    _last: deque[tuple[EvaluationRecord, float | None]] = field(
        default_factory=lambda: deque(maxlen=TAIL)
    )

    def observe(self, evaluation: EvaluationRecord) -> None:
        """Add the next evaluation of the run."""
        own = (evaluation, self.goal.value_of(evaluation))
        for _ in range(TAIL if evaluation.final else 1):
            if self.reached is not None:
                return
            self._last.append(own)
            known = [value for _, value in self._last if value is not None]
            if len(known) == TAIL and sum(known) >= TAIL * self.goal.value:
                self.reached = self._last[0][0]
                self._last.clear()

    def observe_all(self, evaluations: Iterable[EvaluationRecord]) -> None:
        """Add these evaluations, in the order of the run."""
        for evaluation in evaluations:
            self.observe(evaluation)

    def costs(self) -> dict[str, float | None]:
        """Return what the goal took: arrivals, virtual hours and, with costs, MB and kJ.

        All are None if the goal was not reached.
        """
        at = self.reached or (self._last[-1][0] if self._last else None)
        if at is None:
            return {"arrivals": None, "hours": None}
        found = {"arrivals": float(at.event), "hours": at.time / 3600, **cost_columns(at.costs)}
        return {unit: None if self.reached is None else value for unit, value in found.items()}


@dataclass(frozen=True)
class Reached:
    """When the seeds of a row reached a goal.

    >>> values = {"arrivals": (900.0, None, 1500.0), "hours": (0.01, None, 0.02)}
    >>> reached = Reached(values, (3000, 3000, 3000))
    >>> reached.median("arrivals"), str(reached)
    (1500.0, '1,500, 1 min 12 s (2 of 3)')
    >>> str(Reached({"arrivals": (900.0, None), "hours": (0.01, None)}, (3000, 3000)))
    'not within 3,000 (1 of 2)'
    """

    values: Mapping[str, tuple[float | None, ...]]  # by unit, then by seed; None: not reached
    within: tuple[int, ...]  # the arrivals of each seed
    spacing: int | None = None  # the arrivals between two evaluations, if it is set

    @property
    def count(self) -> int:
        """The number of seeds that reached the goal."""
        return sum(value is not None for value in self.values["arrivals"])

    def median(self, unit: str) -> float | None:
        """Return the median over the seeds; None if it is a seed that did not reach the goal.

        A seed that did not reach it counts as later than every other seed. The mean of the seeds
        that did would favour a method that rarely gets there.
        """
        own = self.values.get(unit)
        middle = inf if own is None else median(inf if value is None else value for value in own)
        return None if middle == inf else middle

    def __str__(self) -> str:
        middle, seeds = self.median("arrivals"), len(self.within)
        words = f"not within {max(self.within):,}"
        if middle is not None:
            words = f"{middle:,.0f}, {duration(3600 * (self.median('hours') or 0.0))}"
        return words if self.count in (0, seeds) else f"{words} ({self.count} of {seeds})"
