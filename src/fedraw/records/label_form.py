"""The two forms of a table of label counts, told apart by the header."""

from __future__ import annotations

from dataclasses import dataclass

from fedraw.errors import BadInput
from fedraw.records.table_file import (
    TableFile,
    missing_column,
    positions,
    refuse_repeated_columns,
)

_LONG = ("client", "label", "count")


@dataclass(frozen=True)
class Long:
    """One row for each client and label; the positions of the three columns."""

    client: int
    label: int
    count: int


@dataclass(frozen=True)
class Wide:
    """One row for each client; the positions of the client's name and of each label's counts."""

    client: int
    labels: tuple[int, ...]


def label_form(file: TableFile) -> Long | Wide:
    if "label" in file.header or "count" in file.header:
        return Long(*positions(file, _LONG))
    if "client" not in file.header:
        raise missing_column(file, "client", _LONG)
    refuse_repeated_columns(file)
    if len(file.header) == 1:
        raise BadInput(
            f"{file.path}: there is nothing beside the column 'client'; add the columns label and "
            "count, or one column of counts for each label"
        )
    if {*file.header} in ({"client", "seconds"}, {"client", "timestamp"}):
        raise BadInput(
            f"{file.path} has the columns {', '.join(file.header)}: these are times, not label "
            "counts; give it as --times"
        )
    client = file.header.index("client")
    return Wide(client, tuple(i for i in range(len(file.header)) if i != client))
