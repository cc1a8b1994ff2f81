"""Converts public traces of devices and of their availability to tables that fedraw reads.

fedscale-devices        FedScale's client_device_capacity: a pickled dictionary that maps a client
                        to `computation` (milliseconds per sample, forward pass only) and
                        `communication` (kbit/s)
fedscale-availability   FedScale's client_behave_trace: a pickled dictionary that maps a client to
                        `active` and `inactive` (lists of seconds) and `finish_time`
flash                   FLASH's state traces: a JSON object that maps a device to its messages, one
                        per line: a date, a tab and a state of the device

A pickle can run arbitrary code when it is loaded. These traces contain only numbers, text, lists
and dictionaries, so a pickle that imports anything is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedraw.errors import BadInput, nearest
from fedraw.storage.files import atomic_write
from fedraw.storage.tables import quoted, read_errors, require_file

# FedScale measures the forward pass. The backward pass takes about twice as long, so a training
# step takes three times as long.
FORWARD_TO_TRAINING = 3.0
# A FLASH device can train while it is locked, charging and connected to Wi-Fi.
_STATES = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    "unknown": ("wifi", False),
    "2g": ("wifi", False),
    "3g": ("wifi", False),
    "4g": ("wifi", False),
    "5g": ("wifi", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}

Interval = tuple[float, float]
# Converts the record of one client to its rows, without the client's number. A client that is never
# online has no rows.
Convert = Callable[[Any], Sequence[tuple[float, ...]]]


def convert_trace(
    kind: str, path: Path, clients: int | None = None, seed: int = 0
) -> tuple[list[str], list[tuple[float, ...]]]:
    """Convert a public trace, and return the header and the rows of the table.

    Args:
        kind: The format of the file: "fedscale-devices", "fedscale-availability" or "flash".
        path: The file.
        clients: The number of clients to draw at random (default: all, in the order of the file).
            Clients are numbered from 0. Clients that are never online are skipped.
        seed: The seed of the draw.

    """
    if kind not in KINDS:
        raise BadInput(f"unknown trace format {kind!r}; {nearest(kind, KINDS)}")
    header, read, convert = KINDS[kind]
    content = read(path)
    if not isinstance(content, Mapping) or not content:
        raise BadInput(f"{path}: expected a dictionary of clients, got {quoted(repr(content))}")
    names = list(content)
    order = range(len(names)) if clients is None else np.random.default_rng(seed).permutation(
        len(names)
    ).tolist()  # fmt: skip
    rows: list[tuple[float, ...]] = []
    number = 0
    for position in order:
        if number == clients:
            break
        try:
            client_rows = convert(content[names[position]])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise BadInput(
                f"{path}: client {quoted(str(names[position]))} does not have the form of {kind} "
                f"({type(problem).__name__}: {problem}); choose the format of the file"
            ) from None
        rows += [(number, *row) for row in client_rows]
        number += bool(client_rows)
    if clients is not None and number < clients:
        raise BadInput(f"{path} has {number} usable clients, not {clients}; ask for fewer")
    return header, _starting_at_zero(rows) if kind == "flash" else rows


def write_trace(header: Sequence[str], rows: Iterable[Sequence[float]], out: Path) -> None:
    """Write the table as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{value:.10g}" for value in row] for row in rows)
    atomic_write(out, text.getvalue().encode())


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, text and containers, and refuses a pickle that imports anything."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(
            f"it imports {module_name}.{global_name}, but a trace has only numbers, text, lists "
            "and dictionaries; do not load it with pickle, because it may run code"
        )


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of numbers, text, lists and dictionaries."""
    require_file(path)
    with read_errors(path):
        content = path.read_bytes()
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except pickle.UnpicklingError as problem:
        raise BadInput(f"{path}: refused: {problem}") from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise BadInput(
            f"{path} is not a pickle ({type(problem).__name__}: {problem}); choose the format of "
            "the file"
        ) from None


def _read_json(path: Path) -> Any:
    require_file(path)
    with read_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadInput(
            f"{path} is not valid JSON ({problem}); choose the format of the file"
        ) from None


def _fedscale_device(record: Mapping[str, Any]) -> list[tuple[float, ...]]:
    compute, kbit = float(record["computation"]), float(record["communication"])
    if not (0 < compute < math.inf and 0 < kbit < math.inf):
        raise ValueError(f"computation = {compute:g} and communication = {kbit:g} are not above 0")
    return [(FORWARD_TO_TRAINING * compute / 1000, kbit / 1000, kbit / 1000)]


def _fedscale_availability(record: Mapping[str, Any]) -> list[Interval]:
    active, inactive = list(map(float, record["active"])), list(map(float, record["inactive"]))
    if len(active) == len(inactive) + 1:  # still online at the end of the trace
        inactive.append(float(record["finish_time"]))
    if len(active) != len(inactive):
        raise ValueError(f"{len(active)} times in active, {len(inactive)} in inactive")
    return list(merged(zip(active, inactive, strict=True)))


def _flash(record: Mapping[str, Any]) -> list[Interval]:
    state = {"charging": False, "wifi": False, "locked": False}
    intervals: list[Interval] = []
    since: float | None = None
    time = 0.0
    for line in record["messages"].split("\n"):
        if not line.strip():
            continue
        date, _, message = line.strip().partition("\t")
        moment = datetime.strptime(date.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        time = moment.timestamp()
        known = _STATES.get(message.strip().lower())
        if known is not None:  # other messages, such as the battery level, do not matter
            state[known[0]] = known[1]
        ready = all(state.values())
        if ready and since is None:
            since = time
        elif not ready and since is not None:
            intervals.append((since, time))
            since = None
    if since is not None:
        intervals.append((since, time))
    return list(merged(intervals))


def merged(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the intervals in order; touching or overlapping ones are merged, empty ones dropped.

    >>> list(merged([(4, 6), (0, 2), (1, 3), (5, 5)]))
    [(0, 3), (4, 6)]
    """
    before: Interval | None = None
    for start, end in sorted(intervals):
        if not start < end:
            continue
        if before is not None and start <= before[1]:
            before = before[0], max(before[1], end)
            continue
        if before is not None:
            yield before
        before = start, end
    if before is not None:
        yield before


def _starting_at_zero(rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Shift all intervals so that the earliest one starts at 0."""
    first = min((row[1] for row in rows), default=0.0)
    return [(client, start - first, end - first) for client, start, end in rows]


_INTERVALS = ["client", "start", "end"]
# For each format: the header of the table, and the functions that read the file and convert one
# client's record.
KINDS: dict[str, tuple[list[str], Callable[[Path], Any], Convert]] = {
    "fedscale-devices": (
        ["client", "seconds_per_sample", "upload_mbit", "download_mbit"],
        read_plain_pickle,
        _fedscale_device,
    ),
    "fedscale-availability": (_INTERVALS, read_plain_pickle, _fedscale_availability),
    "flash": (_INTERVALS, _read_json, _flash),
}
