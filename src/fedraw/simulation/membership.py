"""Joins and leaves during a run: drawn at random, or read from a script or an event log."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedraw.core.text import several
from fedraw.core.types import ClientId
from fedraw.errors import BadInput, error_context
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import JoinedRecord, LeftRecord
from fedraw.simulation.arrivals import stand_ins
from fedraw.simulation.availability import parse_time
from fedraw.storage.tables import UnreadableCell, open_table, parse_name, quoted


class Change(NamedTuple):
    """A client joins or leaves."""

    time: float
    client: int  # a position
    kind: Literal["joined", "left"]


def random_changes(
    clients: int, joining: float, leaving: float, within: float, rng: np.random.Generator
) -> list[Change]:
    """Draw who joins late and who leaves, and when.

    Args:
        clients: The number of clients.
        joining: The share of them that join during the run; the others are there from the start.
        leaving: The share of them that leave.
        within: The seconds within which all of this happens. A client that joins and leaves does
            so in this order.
        rng: Draws the clients and the times.

    >>> changes = random_changes(10, 0.2, 0.0, 60.0, np.random.default_rng(1))
    >>> [(round(change.time), change.kind) for change in changes]
    [(28, 'joined'), (40, 'joined')]

    """
    late = rng.permutation(clients)[: round(joining * clients)]
    departing = rng.permutation(clients)[: round(leaving * clients)]
    if late.size == clients:
        raise BadInput(
            f"membership.joining = {joining} leaves nobody of {clients} clients to start with; "
            "give less"
        )
    joins = np.zeros(clients)
    joins[late] = (1 - rng.random(late.size)) * within  # above 0: who is there at 0 has not joined
    begun = joins[departing]
    leaves = within - rng.random(departing.size) * (within - begun)
    leaves = np.maximum(leaves, np.nextafter(begun, np.inf))
    changes = [
        Change(t, c, "joined") for t, c in zip(joins[late].tolist(), late.tolist(), strict=True)
    ]
    changes += [
        Change(t, c, "left") for t, c in zip(leaves.tolist(), departing.tolist(), strict=True)
    ]
    return sorted(changes)


def read_changes(path: Path, clients: Sequence[ClientId]) -> list[Change]:
    """Joins and leaves from a table `client,time,change`, or from an event log (`.jsonl`).

    A client whose first change is that it leaves, or that is not named, is there from the start.
    """
    position = {str(client): i for i, client in enumerate(clients)}
    with error_context("membership.trace"):
        rows = _log_rows(path) if path.suffix == ".jsonl" else _table_rows(path)
        names = stand_ins(path, clients)
        rows = [(time, names.get(name, name), kind) for time, name, kind in rows]
        unknown = next((name for _, name, _ in rows if name not in position), None)
        if unknown is not None:
            raise BadInput(
                f"{path} names {unknown!r}, which is no client of this federation (its clients: "
                f"{several(map(str, clients))}); rename it, or leave its rows out"
            )
        changes = sorted(Change(time, position[name], kind) for time, name, kind in rows)
        return _checked(changes, clients, path)


def _checked(changes: list[Change], clients: Sequence[ClientId], path: Path) -> list[Change]:
    """Return the changes after the start; refuse a client that joins or leaves twice."""
    last: dict[int, Change] = {}
    founders = set(range(len(clients)))
    kept = []
    for change in changes:
        before = last.get(change.client)
        name = clients[change.client]
        if before is not None and before.kind == change.kind:
            raise BadInput(f"{path}: client {name!r} has {change.kind} twice in a row; remove one")
        if before is not None and before.time == change.time:
            raise BadInput(
                f"{path}: client {name!r} joins and leaves at {change.time:g}; give it two times"
            )
        last[change.client] = change
        if before is None and change.kind == "joined":
            if change.time == 0:
                continue
            founders.discard(change.client)
        kept.append(change)
    if not founders:
        raise BadInput(f"{path}: no client is there from the start; let one join at time 0")
    return kept


Row = tuple[float, str, Literal["joined", "left"]]


def _table_rows(path: Path) -> list[Row]:
    columns = {"client": parse_name, "time": parse_time, "change": _parse_change}
    return [(time, name, kind) for _, (name, time, kind) in open_table(path).parsed(columns)]


def _parse_change(text: str) -> Literal["joined", "left"]:
    match text.strip():
        case "joined":
            return "joined"
        case "left":
            return "left"
        case other:
            raise UnreadableCell(f"{quoted(other)} is not a change; write joined or left")


def _log_rows(path: Path) -> list[Row]:
    rows: list[Row] = []
    for record in read_log(path):
        if isinstance(record, JoinedRecord | LeftRecord):
            # Founders of a server's federation join at event 0, a moment after its time 0.
            founder = isinstance(record, JoinedRecord) and record.event == 0
            time = 0.0 if founder else float(record.time)
            left = isinstance(record, LeftRecord)
            rows.append((time, str(record.client), "left" if left else "joined"))
    return rows


def next_leave(changes: Sequence[Change]) -> Callable[[int, float], float]:
    """Return a function of position and time that says when the client leaves next, if ever."""
    leaves: dict[int, list[float]] = {}
    for change in changes:
        if change.kind == "left":
            leaves.setdefault(change.client, []).append(change.time)
    return lambda client, now: _after(leaves, client, now)


def _after(leaves: Mapping[int, Sequence[float]], client: int, now: float) -> float:
    own = leaves.get(client, ())
    place = bisect_right(own, now)
    return own[place] if place < len(own) else math.inf
