"""What a run costs besides events: virtual hours, bytes and energy, and what a goal costs.

The log has bytes and joules. Tables and figures have megabytes and kilojoules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedraw.errors import BadInput
from fedraw.eventlog.records import EvaluationRecord

# The columns of costs, in the order of tables.
COSTS = ("hours", "MB", "kJ")


def cost_columns(costs: Mapping[str, float] | None) -> dict[str, float]:
    """The costs of a log's record by the names of their columns.

    >>> cost_columns({"hours": 0.5, "bytes": 3_000_000, "joules": 1200.0})
    {'hours': 0.5, 'MB': 3.0, 'kJ': 1.2}
    """
    if costs is None:
        return {}
    found = {"hours": costs["hours"], "MB": costs["bytes"] / 1e6}
    return found | ({"kJ": costs["joules"] / 1e3} if "joules" in costs else {})


@dataclass(frozen=True)
class Goal:
    """A value that a metric has to reach.

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
        raise BadInput(f"{text!r} is no goal; write a metric and a value, such as AvgRare>=50")

    def __str__(self) -> str:
        return f"{self.metric}>={self.value:g}"

    def reached(self, evaluations: Iterable[EvaluationRecord]) -> EvaluationRecord | None:
        """The first evaluation with this value or a higher one; None if there is none."""
        for evaluation in evaluations:
            found = {**evaluation.metrics, **(evaluation.own or {})}.get(self.metric)
            if found is not None and found >= self.value:
                return evaluation
        return None

    def paid(self, evaluations: Sequence[EvaluationRecord]) -> dict[str, float | None]:
        """Events, seconds and costs until the goal was reached; None where it never was.

        The names are those of columns, such as "events to AvgRare>=50". There are seconds in a run
        without costs, and otherwise hours, megabytes and kilojoules.
        """
        first = self.reached(evaluations)
        costs = cost_columns(evaluations[-1].costs) if evaluations else {}
        paid: dict[str, float | None] = dict.fromkeys(["events", *(costs or ["seconds"])])
        if first is not None:
            found = {"events": float(first.event), "seconds": first.time}
            found |= cost_columns(first.costs)
            paid = {name: found[name] for name in paid}
        return {f"{name} to {self}": value for name, value in paid.items()}
