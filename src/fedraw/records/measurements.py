"""The rows of a file of times, matched with the clients of a label table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput
from fedraw.records import cells
from fedraw.records.table_file import TableFile


@dataclass(frozen=True, eq=False)
class Measurements:
    """For each row the client's position and a number."""

    row: Ints
    value: Floats


def read_measurements(
    file: TableFile,
    columns: tuple[int, int],
    clients: Sequence[str],
    meaning: Callable[[str], float],
) -> Measurements:
    """Every client of the file must be known."""
    client, value = columns
    known = {name: i for i, name in enumerate(clients)}
    row, values = array("q"), array("d")
    strangers: dict[str, int] = {}
    for place, texts in file.rows():
        try:
            column = client
            position = known.get(texts[client])
            if position is None:
                name = cells.name(texts[client])
                position = known.get(name, -1)
                if position < 0:
                    strangers.setdefault(name, place)
            column = value
            values.append(meaning(texts[value]))
        except cells.Unreadable as problem:
            raise file.wrong(place, column, str(problem)) from None
        row.append(position)
    if strangers:
        raise _unknown(file, strangers)
    return Measurements(np.array(row, np.int64), np.array(values, np.float64))


def _unknown(file: TableFile, strangers: dict[str, int]) -> BadInput:
    first = [f"{name!r} ({file.place} {place})" for name, place in list(strangers.items())[:10]]
    more = f" and {len(strangers) - 10} more" if len(strangers) > 10 else ""
    has = "client has" if len(strangers) == 1 else "clients have"
    return BadInput(
        f"{file.path}: {len(strangers)} {has} no label counts: {', '.join(first)}{more}; "
        "remove the rows, or add the counts to the label table"
    )
