"""Flights from New York in 2013 as a task: predict how late a departed flight will arrive.

Inputs are the delay at departure, the scheduled hour, the month, the distance and the airport of
departure. Labels are classes of the delay at arrival. The columns are the aircraft (`tailnum`), the
carrier, the airport of departure and the destination. Few aircraft have ever been five hours late.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedraw.data.readers import Content, Copy, find_copy
from fedraw.data.releases import RELEASES
from fedraw.errors import BadInput

FLIGHTS = RELEASES["flights"]

COLUMNS = ("tailnum", "carrier", "origin", "dest")
# The smallest delay of each label after the first, in minutes, in the order of the labels.
_LATE_FROM = (-15, 15, 60, 180, 300)
_ORIGINS = ("EWR", "JFK", "LGA")
_NEEDED = (*COLUMNS, "month", "hour", "distance", "dep_delay", "arr_delay")


def find_flights(root: Path) -> Copy:
    """Find the table of flights below the data root."""
    (source,) = FLIGHTS.sources
    return find_copy(FLIGHTS, root, (source.folder,), {source.members: 1}, read_flights)


def read_flights(path: Path) -> Content:
    """Read the flights that arrived, from a zipped CSV file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{path}: is not the zipped flights.csv ({error}); download it again") from (
            None
        )
    lacking = [name for name in _NEEDED if rows and name not in rows[0]]
    if lacking or not rows:
        raise BadInput(f"{path}: has no column {', '.join(lacking) or 'at all'}; download it again")
    arrived = [row for row in rows if row["arr_delay"] not in ("", "NA")]
    try:
        inputs = np.array([features(row) for row in arrived], np.float32)
        delays = np.array([float(row["arr_delay"]) for row in arrived])
    except ValueError as problem:
        raise BadInput(f"{path}: {problem}; download it again") from None
    labels = np.searchsorted(_LATE_FROM, delays, side="right").astype(np.int64)
    columns = {name: np.array([row[name] for row in arrived]) for name in COLUMNS}
    return Content(inputs, labels, columns)


def features(row: Mapping[str, str]) -> list[float]:
    """Return the inputs of one flight.

    They are the delay in hours, sine and cosine of the hour and of the month, the distance in
    1,000 miles, and the one-hot airport of departure.

    >>> features({"dep_delay": "30", "hour": "6", "month": "12", "distance": "500",
    ...           "origin": "JFK"})
    [0.5, 1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0]
    """
    day, year = (2 * np.pi * float(row[key]) / n for key, n in (("hour", 24), ("month", 12)))
    circle = [float(round(f(turn), 6)) for turn in (day, year) for f in (np.sin, np.cos)]
    origin = [float(row["origin"] == name) for name in _ORIGINS]
    return [
        float(row["dep_delay"]) / 60,
        *[value + 0.0 for value in circle],
        float(row["distance"]) / 1000,
        *origin,
    ]
