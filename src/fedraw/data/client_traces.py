"""Converters: public traces of devices and of their availability, as tables that fedraw reads.

fedscale-devices        FedScale's client_device_capacity: a pickled dictionary from client to
                        computation (milliseconds a sample, forward only) and communication (kbit/s)
fedscale-availability   FedScale's client_behave_trace: a pickled dictionary from client to active,
                        inactive (lists of seconds) and finish_time
flash                   FLASH's state traces: a JSON object from device to messages, one a line: a
                        date, a tab and a state of the device

A pickle can run any code when it is loaded. These files need numbers, texts, lists and dictionaries
only, so whatever else a file asks for is refused.
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

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write
from fedraw.storage.tables import quoted, read_errors, require_file

# Training a sample takes three times as long as the forward pass that FedScale measures: the
# backward pass takes twice as long again.
FORWARD_TO_TRAINING = 3.0
# A FLASH device can train while it is locked, charging and in a wireless network.
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
# The rows of one client, without its name; none if the client is of no use.
Convert = Callable[[Any], Sequence[tuple[float, ...]]]


def convert_trace(
    kind: str, path: Path, clients: int | None = None, seed: int = 0
) -> tuple[list[str], list[tuple[float, ...]]]:
    """The header and the rows of the table for a public trace.

    Args:
        kind: The format of the file: "fedscale-devices", "fedscale-availability" or "flash".
        path: The file.
        clients: How many clients to draw from the file; by default all of them. They are numbered
            from 0 on. Clients that are never online are passed over.
        seed: Draws them.

    """
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no format of traces; known: {', '.join(KINDS)}")
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
            own = convert(content[names[position]])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise BadInput(
                f"{path}: client {quoted(str(names[position]))} is not as {kind} has it "
                f"({type(problem).__name__}: {problem}); check the format"
            ) from None
        rows += [(number, *row) for row in own]
        number += bool(own)
    if clients is not None and number < clients:
        raise BadInput(f"{path} has {number} clients that can be used; ask for at most as many")
    return header, _from_zero(rows) if kind == "flash" else rows


def write_trace(header: Sequence[str], rows: Iterable[Sequence[float]], out: Path) -> None:
    """Write a CSV of these rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{value:.10g}" for value in row] for row in rows)
    atomic_write(out, text.getvalue().encode())


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, texts and containers, and nothing that would have to be imported."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(
            f"it asks for {module_name}.{global_name}, and a trace has only numbers, texts, lists "
            "and dictionaries; do not load it with pickle, because it may run code"
        )


def read_plain_pickle(path: Path) -> Any:
    """The content of a pickle that has no objects in it."""
    require_file(path)
    with read_errors(path):
        content = path.read_bytes()
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except pickle.UnpicklingError as problem:
        raise BadInput(f"{path}: refused: {problem}") from None
    except Exception as problem:  # a damaged pickle may fail in any way
        raise BadInput(f"{path} is no pickle ({type(problem).__name__}: {problem})") from None


def _read_json(path: Path) -> Any:
    require_file(path)
    with read_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"{path} is not valid JSON: {problem}") from None


def _fedscale_device(own: Mapping[str, Any]) -> list[tuple[float, ...]]:
    compute, kbit = float(own["computation"]), float(own["communication"])
    if not (0 < compute < math.inf and 0 < kbit < math.inf):
        raise ValueError(f"computation = {compute:g} and communication = {kbit:g} are not above 0")
    return [(FORWARD_TO_TRAINING * compute / 1000, kbit / 1000, kbit / 1000)]


def _fedscale_availability(own: Mapping[str, Any]) -> list[Interval]:
    active, inactive = list(map(float, own["active"])), list(map(float, own["inactive"]))
    if len(active) == len(inactive) + 1:  # still online at the end
        inactive.append(float(own["finish_time"]))
    if len(active) != len(inactive):
        raise ValueError(f"{len(active)} times in active, {len(inactive)} in inactive")
    return list(merged(zip(active, inactive, strict=True)))


def _flash(own: Mapping[str, Any]) -> list[Interval]:
    state = {"charging": False, "wifi": False, "locked": False}
    intervals: list[Interval] = []
    since: float | None = None
    time = 0.0
    for line in own["messages"].split("\n"):
        if not line.strip():
            continue
        date, _, message = line.strip().partition("\t")
        moment = datetime.strptime(date.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        time = moment.timestamp()
        known = _STATES.get(message.strip().lower())
        if known is not None:  # others, such as the level of the battery, do not matter
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
    """The intervals in order, with those that touch or overlap joined, without empty ones.

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


def _from_zero(rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The intervals with the earliest start as time 0."""
    first = min((row[1] for row in rows), default=0.0)
    return [(client, start - first, end - first) for client, start, end in rows]


_INTERVALS = ["client", "start", "end"]
# By name: the header of the table, how the file is read, and how one client is converted.
KINDS: dict[str, tuple[list[str], Callable[[Path], Any], Convert]] = {
    "fedscale-devices": (
        ["client", "seconds_per_sample", "upload_mbit", "download_mbit"],
        read_plain_pickle,
        _fedscale_device,
    ),
    "fedscale-availability": (_INTERVALS, read_plain_pickle, _fedscale_availability),
    "flash": (_INTERVALS, _read_json, _flash),
}
