"""Converts public traces of devices and of their availability to tables that fedraw reads.

    python examples/scale/convert_trace.py FORMAT FILE -o TABLE.csv [--clients 1000] [--seed 1]

The table is for costs.trace or availability.trace of a spec. The formats are:

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

import argparse
import csv
import io
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

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


class BadTrace(ValueError):
    """A file that is not a trace of this format."""


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
        raise BadTrace(f"unknown trace format {kind!r}; known: {', '.join(KINDS)}")
    header, read, convert = KINDS[kind]
    content = read(path)
    if not isinstance(content, Mapping) or not content:
        raise BadTrace(f"{path}: expected a dictionary of clients, got {content!r:.60}")
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
            raise BadTrace(
                f"{path}: client {str(names[position])!r:.60} does not have the form of {kind} "
                f"({type(problem).__name__}: {problem}); choose the format of the file"
            ) from None
        rows += [(number, *row) for row in client_rows]
        number += bool(client_rows)
    if clients is not None and number < clients:
        raise BadTrace(f"{path} has {number} usable clients, not {clients}; ask for fewer")
    return header, _starting_at_zero(rows) if kind == "flash" else rows


def write_trace(header: Sequence[str], rows: Iterable[Sequence[float]], out: Path) -> None:
    """Write the table as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{value:.10g}" for value in row] for row in rows)
    out.write_text(text.getvalue(), encoding="utf-8")


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, text and containers, and refuses a pickle that imports anything."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(
            f"it imports {module_name}.{global_name}, but a trace has only numbers, text, lists "
            "and dictionaries; do not load it with pickle, because it may run code"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadTrace(f"cannot read {path}: {problem.strerror}; name another file") from None


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of numbers, text, lists and dictionaries."""
    content = _read(path)
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except pickle.UnpicklingError as problem:
        raise BadTrace(f"{path}: refused: {problem}") from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise BadTrace(
            f"{path} is not a pickle ({type(problem).__name__}: {problem}); choose the format of "
            "the file"
        ) from None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as problem:
        raise BadTrace(
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert the file that the command line names."""
    parser = argparse.ArgumentParser(description="Convert a public trace to a table for fedraw.")
    parser.add_argument("kind", metavar="FORMAT", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("--clients", type=int, help="how many to draw; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    chosen = parser.parse_args(arguments)
    try:
        header, rows = convert_trace(chosen.kind, chosen.file, chosen.clients, chosen.seed)
        write_trace(header, rows, chosen.out)
    except BadTrace as problem:
        sys.exit(f"convert_trace: {problem}")
    print(f"{chosen.out}: {len(rows):,} rows of {len({row[0] for row in rows}):,} clients")


if __name__ == "__main__":
    main()
