"""The series of a run, in the form that all targets use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedraw.eventlog.metrics import PARTICIPATION
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord, Record
from fedraw.eventlog.state import RunState

ARRIVAL = (
    "event",
    "time",
    "client",
    "start_time",
    "start_version",
    "version",
    "staleness_events",
    "staleness_versions",
    "aggregated",
    "norm",
)


class Scalars(NamedTuple):
    """All values of one evaluation, by the name of the series."""

    event: int
    time: float  # the log's time
    wall: float | None  # unix seconds; None in a simulation
    version: int
    values: Mapping[str, float]


@dataclass
class RunSeries:
    """Reads the records of a log, and yields the rows for a target."""

    state: RunState = field(default_factory=lambda: RunState(bounded=True))
    _epoch: float | None = None

    def observe(self, record: Record) -> Iterator[Scalars | dict[str, Any]]:
        """Read the next record; yield the scalars of an evaluation, or the row of an arrival."""
        self.state.apply(record)
        self._epoch = getattr(record, "epoch", None) or self._epoch
        if isinstance(record, EvaluationRecord):
            wall = None if self._epoch is None else self._epoch + record.time
            values = {name: v for name, v in self._values(record) if v is not None}
            yield Scalars(record.event, record.time, wall, record.version, values)
        elif isinstance(record, ArrivalRecord):
            yield {name: getattr(record, name) for name in ARRIVAL}

    def _values(self, record: EvaluationRecord) -> Iterator[tuple[str, float | None]]:
        yield from record.metrics.items()
        groups: dict[str, Mapping[str, float | None] | None] = {
            "recall": record.recall,
            "own": record.own,
            "own_rare": record.own_rare,
        }
        for part, values in (record.calibrated or {}).items():
            groups["calibrated" if part == "metrics" else f"calibrated_{part}"] = values
        for group, named in groups.items():
            for name, value in (named or {}).items():
                yield f"{group}/{name}", value
        dynamics = self.state.participation()
        for name in PARTICIPATION:
            yield f"participation/{name}", dynamics.get(name)
        yield "federation/members", float(self.state.size)
        yield "federation/rejected", float(sum(self.state.rejected.values()))
