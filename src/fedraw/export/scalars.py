"""The series of a run, in the form that all targets use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fedraw.eventlog.metrics import PARTICIPATION
from fedraw.eventlog.records import EvaluationRecord
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


def scalars(state: RunState, record: EvaluationRecord) -> Scalars:
    """Return the values of an evaluation, with those of the run's state after it."""
    wall = None if state.epoch is None else state.epoch + record.time
    values = {name: value for name, value in _values(state, record) if value is not None}
    return Scalars(record.event, record.time, wall, record.version, values)


def _values(state: RunState, record: EvaluationRecord) -> Iterator[tuple[str, float | None]]:
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
    dynamics = state.participation()
    for name in PARTICIPATION:
        yield f"participation/{name}", dynamics.get(name)
    yield "federation/members", float(state.size)
    yield "federation/rejected", float(sum(state.rejected.values()))
