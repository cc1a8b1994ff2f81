"""A short log of a real server.

Two sites begin it. "north" joins later and is the only holder of `owl`, until it declares that it
no longer has the label. "east" leaves and returns. "west" is quarantined. The server restarts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.eventlog.logs import as_bytes, record

from fedraw.eventlog.records import Record, StartRecord


def member(kind: str, event: int, time: float, client: str, **more: object) -> Record:
    return record(kind, event=event, time=time, client=client, **more)


def arrival(
    event: int, time: float, client: str, buffer: Iterable[str], weights: Iterable[float]
) -> Record:
    told = list(weights)
    return record(
        "arrival",
        event=event,
        time=time,
        client=client,
        version=event,
        staleness_events=event - 1,
        aggregated=bool(told),
        buffer=list(buffer),
        weights=told,
    )


START = StartRecord(
    origin="server",
    name="fedraw",
    seed=None,
    events=None,
    labels=["cat", "owl"],
    rare_labels=["owl"],
    engine="none",
    spec={
        "strategy": {"name": "fedraw", "buffer": 2, "layout": None},
        "server": {"folder": "federation", "deadline": 900.0, "sites": []},
    },
)
OVERDUE = "asked again in 30 s: nothing came within 900 s"
QUARANTINED = "quarantined for 3600 s after 5 failures: client exception"
STORY: list[Record] = [
    START,
    member("joined", 0, 0.0, "west", counts={"cat": 4, "owl": 0}, node=1),
    member("joined", 0, 0.0, "east", counts={"cat": 2}, node=2),
    arrival(1, 10.0, "west", ["west"], [1.0]),
    member("joined", 1, 12.0, "north", counts={"owl": 1, "cat": 1}, node=3),
    record("scores", event=1, time=12.0, cause="north joined"),
    arrival(2, 20.0, "north", ["west", "north"], [0.25, 0.75]),
    member("note", 2, 25.0, "east", reason=OVERDUE),
    member("left", 2, 30.0, "east", reason="out of reach for 60 s"),
    record("restarted", event=2, time=105.0, gap=75.0, reasked=["west", "north"]),
    member("declared", 2, 110.0, "north", counts={"cat": 2}, reason="new counts"),
    arrival(3, 120.0, "north", ["west", "north"], [0.5, 0.5]),
    member("rejected", 4, 130.0, "west", reason="client 'west' sent 3 numbers"),
    member("left", 4, 131.0, "west", reason=QUARANTINED, until=1_700_003_600.0),
    record("note", event=4, time=132.0, reason="node 9 did not tell who it is"),
    member("joined", 4, 140.0, "east", counts={"cat": 2}, node=4),
    arrival(5, 150.0, "east", ["north", "east"], [0.5, 0.5]),
    record(
        "evaluation",
        event=5,
        time=151.0,
        version=5,
        metrics={"GlobalAcc": 80.0, "AvgRare": 60.0},
        recall={"cat": 90.0, "owl": 60.0},
    ),
]
END = record("end", event=5, time=152.0, reason="5 updates")


def write(path: Path, records: Iterable[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_bytes(records))
    return path
