"""The series of a run, in the form that all targets use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.eventlog.compare import flat
from fedraw.eventlog.measures import PARTICIPATION
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord, Record, StartRecord
from fedraw.eventlog.summary import RunSummary

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

    log: Path
    start: StartRecord | None = None
    finished: bool = False
    _summary: RunSummary = field(default_factory=RunSummary)
    _epoch: float | None = None

    @property
    def name(self) -> str:
        """The name of the run in trackers."""
        folder = self.log.parent
        start = self.start
        if start is None or start.seed is None:
            return folder.name
        return f"{folder.parent.name}-{folder.name}" if folder.parent.name else folder.name

    def settings(self) -> dict[str, str | int | float | bool]:
        """Return the settings of the run by dotted names."""
        if self.start is None:
            return {}
        settings = {"method": self.start.name, "origin": self.start.origin, **flat(self.start.spec)}
        if self.start.seed is not None:
            settings["seed"] = self.start.seed
        plain = (str, int, float, bool)
        return {
            str(key): value if isinstance(value, plain) else str(value)
            for key, value in settings.items()
            if value is not None
        }

    def observe(self, record: Record) -> Iterator[Scalars | dict[str, Any]]:
        """Read the next record; yield the scalars of an evaluation, or the row of an arrival."""
        self._summary.observe(record)
        del self._summary.evaluations[:-1]
        self.finished = self._summary.finished
        if isinstance(record, StartRecord):
            self.start = record
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
        dynamics = self._summary.dynamics()
        for name in PARTICIPATION:
            yield f"participation/{name}", dynamics.get(name)
        yield "federation/members", float(len(self._summary.members))
        yield "federation/rejected", float(sum(self._summary.rejected.values()))
