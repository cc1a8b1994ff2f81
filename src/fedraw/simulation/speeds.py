"""Mean training times of the clients: drawn once per client, or given by the user."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedraw.core.text import several
from fedraw.core.types import LONGEST_TIME, SHORTEST_TIME, ClientId, Floats
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import Trace, check_trace, read_trace

Speeds = Literal["auto", "equal", "uniform", "correlated", "ratio", "stragglers"]


def mean_seconds(
    kind: Speeds,
    clients: int,
    rare: Collection[int],
    rng: np.random.Generator,
    ratio: float = 2.0,
    stragglers: int = 0,
) -> Floats:
    """Mean training time s_i of each client.

    equal       1 for everyone
    uniform     U[0.5, 1.5] for everyone
    correlated  U[0.5, 1.5], and U[1.5, 3] for clients with rare labels
    ratio       U[0.5, 1.5], and `ratio` times as much for clients with rare labels
    stragglers  U[0.5, 1.5], and `ratio` times as much for so many clients, drawn at random
    auto        correlated if there are clients with rare labels, else uniform

    Every kind makes one draw per client, so two kinds of one seed differ only as described. Who is
    a straggler is drawn after that.
    """
    draw = rng.random(clients)
    if kind == "equal":
        return np.ones(clients)
    if kind in ("correlated", "ratio") and not rare:
        raise BadInput(
            f"speeds.kind = {kind!r} slows clients with rare labels, and there are none: no label "
            "is named, and none has at most half of the median coverage; name rare_labels, or use "
            "'uniform'"
        )
    seconds = 0.5 + draw
    slow = list(rare)
    if kind in ("correlated", "auto"):
        seconds[slow] = 1.5 + 1.5 * draw[slow]
    elif kind == "ratio":
        seconds[slow] *= ratio
    elif kind == "stragglers":
        if stragglers > clients:
            raise BadInput(
                f"speeds.stragglers = {stragglers}, but there are {clients} clients; name at most "
                "as many"
            )
        seconds[rng.choice(clients, stragglers, replace=False)] *= ratio
    return seconds


def own_speeds(given: Any, clients: Sequence[ClientId]) -> tuple[Floats, Trace | None]:
    """Return each client's mean training time, and the trace with the single times, if any.

    Args:
        given: Seconds per client: a sequence in the order of the clients, or a mapping from client
            to seconds. Or a trace: the path of a file that `read_trace` reads, a mapping from
            client to a list of seconds, a list of pairs (client, seconds), or a table with the
            columns `client` and `seconds`, such as a data frame.
        clients: The clients of the federation.

    >>> own_speeds({"a": 2, "b": 0.5}, ["a", "b"])
    (array([2. , 0.5]), None)
    >>> own_speeds([("a", 2), ("b", 1), ("a", 4)], ["a", "b"])
    (array([3., 1.]), {'a': [2.0, 4.0], 'b': [1.0]})

    """
    if isinstance(given, str | os.PathLike):
        trace: Trace = read_trace(Path(given))
    else:
        if hasattr(given, "to_dict") and not hasattr(given, "columns"):
            given = given.to_dict()  # a pandas Series, whose index names the clients
        pairs = _pairs(given)
        if pairs is None:
            return _one_for_each(given, clients), None
        durations: dict[str, list[float]] = {}
        for client, seconds in pairs:
            durations.setdefault(str(client), []).append(_seconds(client, seconds))
        trace = durations
    return mean_of_trace(trace, clients), trace


def mean_of_trace(trace: Trace, clients: Sequence[ClientId]) -> Floats:
    """Return the mean of each client's recorded times."""
    check_trace(clients, trace)
    return np.array([np.mean(trace[str(client)]) for client in clients])


def _pairs(given: Any) -> list[tuple[Any, Any]] | None:
    """Return the rows (client, seconds) of a trace, or None for anything else."""
    columns = getattr(given, "columns", given if isinstance(given, Mapping) else ())
    if "client" in columns and "seconds" in columns:
        return list(zip(given["client"], given["seconds"], strict=True))
    if isinstance(given, Mapping):
        if all(np.ndim(seconds) == 1 for seconds in given.values()):
            return [(client, one) for client, own in given.items() for one in own]
        return None
    if isinstance(given, list | tuple) and given and all(_is_pair(row) for row in given):
        return [tuple(row) for row in given]
    return None


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _one_for_each(given: Any, clients: Sequence[ClientId]) -> Floats:
    if isinstance(given, Mapping):
        named = {str(client): seconds for client, seconds in given.items()}
        missing = [client for client in clients if str(client) not in named]
        unknown = [client for client in named if client not in set(map(str, clients))]
        if missing or unknown:
            what = (
                f"speeds have no client {missing[0]!r}"
                if missing
                else (f"speeds have {unknown[0]!r}, which is no client")
            )
            raise BadInput(
                f"{what} (the clients: {several(map(str, clients))}); give seconds for each client"
            )
        given = [named[str(client)] for client in clients]
    try:
        values = list(given)
    except TypeError:
        raise BadInput(
            f"speeds are {given!r}; give seconds for each client, or the path of a trace"
        ) from None
    if len(values) != len(clients):
        raise BadInput(
            f"there are {len(values)} speeds for {len(clients)} clients; give seconds for each "
            "client"
        )
    pairs = zip(clients, values, strict=True)
    return np.array([_seconds(client, seconds) for client, seconds in pairs])


def _seconds(client: Any, seconds: Any) -> float:
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        value = float("nan")
    if not SHORTEST_TIME <= value <= LONGEST_TIME:
        raise BadInput(f"speeds: client {client!r} has {seconds!r} seconds; give a number above 0")
    return value
