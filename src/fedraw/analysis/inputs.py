"""What a caller may bring to an audit, made uniform: label counts, times, rare labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import (
    LONGEST_TIME,
    SHORTEST_TIME,
    ClientId,
    Floats,
    Label,
    LabelCounts,
)
from fedraw.errors import BadInput, nearest

LARGEST_RATIO = 1e12

Counts = LabelTable | Mapping[Any, LabelCounts]
Times = Mapping[Any, float] | Sequence[float] | Floats


def table_of(counts: Counts) -> LabelTable:
    return counts if isinstance(counts, LabelTable) else LabelTable.from_counts(counts)


def seconds_of(times: Times | None, clients: Sequence[ClientId]) -> Floats:
    """Mean seconds per client, in the clients' order; all the same if nothing is known.

    >>> seconds_of({"b": 2, "a": 1}, ["a", "b"])
    array([1., 2.])
    """
    if times is None:
        return np.ones(len(clients))
    if isinstance(times, Mapping):
        times = _in_order(times, clients)
    try:
        seconds = np.asarray(times, np.float64)
    except (TypeError, ValueError):
        raise BadInput(_first_that_is_no_number(times, clients)) from None
    if seconds.shape != (len(clients),):
        raise BadInput(f"{seconds.size} times for {len(clients)} clients; give one per client")
    wrong = ~((seconds >= SHORTEST_TIME) & (seconds <= LONGEST_TIME))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise BadInput(
            f"client {clients[i]!r}: {seconds[i]:g} seconds is no time; give a number above 0, "
            f"from {SHORTEST_TIME:g} to {LONGEST_TIME:g}"
        )
    if seconds.max() > LARGEST_RATIO * seconds.min():
        slow, fast = clients[int(seconds.argmax())], clients[int(seconds.argmin())]
        raise BadInput(
            f"client {slow!r} takes {seconds.max():g} seconds and client {fast!r} "
            f"{seconds.min():g}: one would never be heard; check the units, or leave it out"
        )
    return seconds


def _first_that_is_no_number(times: Sequence[Any] | Floats, clients: Sequence[ClientId]) -> str:
    for client, value in zip(clients, times, strict=False):
        try:
            float(value)
        except (TypeError, ValueError):
            return f"client {client!r}: {value!r} is no time; give a number above 0"
    return "times must be numbers; give one per client"


def _in_order(times: Mapping[Any, float], clients: Sequence[ClientId]) -> list[float]:
    known = set(clients)
    for client in times:
        if client not in known:
            raise BadInput(f"times name client {client!r}, who is not in the label counts")
    for client in clients:
        if client not in times:
            raise BadInput(f"times have no value for client {client!r}; give every client's")
    return [times[client] for client in clients]


def rare_by_coverage(table: LabelTable) -> tuple[Label, ...]:
    """The labels that at most half as many clients hold as hold the median label.

    >>> rare_by_coverage(LabelTable.from_counts({1: {"a": 1, "b": 1}, 2: {"a": 1, "b": 1, "c": 1}}))
    ('c',)
    """
    coverage = table.coverage()
    few = coverage <= np.median(coverage) / 2
    return tuple(label for label, is_rare in zip(table.labels, few, strict=True) if is_rare)


def rare_labels_of(rare: Sequence[Label] | None, table: LabelTable) -> tuple[Label, ...]:
    """The labels asked for, checked against the table; by default those of low coverage."""
    if rare is None:
        return rare_by_coverage(table)
    known = {str(label): label for label in table.labels}
    for label in rare:
        if str(label) not in known:
            raise BadInput(f"rare label {str(label)!r}: {nearest(str(label), list(known))}")
    return tuple(dict.fromkeys(known[str(label)] for label in rare))


def holders(table: LabelTable, labels: Sequence[Label]) -> npt.NDArray[np.bool_]:
    """The clients that hold any of the labels."""
    wanted = np.zeros(len(table.labels), np.bool_)
    wanted[[table.labels.index(label) for label in labels]] = True
    inside = np.zeros(len(table), np.bool_)
    inside[table.row_of_entry()[wanted[table.column] & (table.count > 0)]] = True
    return inside
