"""The costs of a run (virtual hours, bytes, energy), and the costs of reaching a goal.

The log has bytes and joules. Tables and figures have megabytes and kilojoules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedraw.errors import BadInput, nearest
from fedraw.eventlog.records import EvaluationRecord, to_fields
from fedraw.eventlog.summary import measured

# The columns of costs, in the order of tables.
COSTS = ("hours", "MB", "kJ")


def cost_columns(costs: Mapping[str, float] | None) -> dict[str, float]:
    """Return the costs of a log's record by the names of their columns.

    >>> cost_columns({"hours": 0.5, "bytes": 3_000_000, "joules": 1200.0})
    {'hours': 0.5, 'MB': 3.0, 'kJ': 1.2}
    """
    if costs is None:
        return {}
    found = {"hours": costs["hours"], "MB": costs["bytes"] / 1e6}
    return found | ({"kJ": costs["joules"] / 1e3} if "joules" in costs else {})


@dataclass(frozen=True)
class Goal:
    """A value that a metric must reach.

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

    def first_reached(self, evaluations: Iterable[EvaluationRecord]) -> EvaluationRecord | None:
        """Return the first evaluation with at least this value, or None."""
        for evaluation in evaluations:
            found = measured(to_fields(evaluation)).get(self.metric)
            if found is not None and found >= self.value:
                return evaluation
        return None

    def require(self, name: str, evaluations: Iterable[EvaluationRecord]) -> None:
        """Refuse a metric that no evaluation of the run with this name has."""
        known = {metric for e in evaluations for metric in measured(to_fields(e))}
        if self.metric not in known:
            raise BadInput(
                f"{name} has no evaluation with the metric {self.metric!r}; "
                f"{nearest(self.metric, known)}"
            )

    def cost_to_reach(self, evaluations: Sequence[EvaluationRecord]) -> dict[str, float | None]:
        """Return the events and costs until the goal was reached; None if it never was.

        The keys are names of columns, such as "events to AvgRare>=50". A run without costs has
        seconds instead of hours, megabytes and kilojoules.
        """
        first = self.first_reached(evaluations)
        costs = cost_columns(evaluations[-1].costs) if evaluations else {}
        costs_to_goal: dict[str, float | None] = dict.fromkeys(["events", *(costs or ["seconds"])])
        if first is not None:
            found = {"events": float(first.event), "seconds": first.time}
            found |= cost_columns(first.costs)
            costs_to_goal = {name: found[name] for name in costs_to_goal}
        return {f"{name} to {self}": value for name, value in costs_to_goal.items()}
