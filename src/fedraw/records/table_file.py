"""A table on disk, whatever its format: a header, and rows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput, nearest

# Where a row stands in its file, and its cells, as many as the header has.
Row = tuple[int, Sequence[str]]

# One pyarrow array of dictionary-encoded text for each column (pyarrow has no types).
Batch = Sequence[Any]


@dataclass(frozen=True, eq=False)
class TableFile:
    """Two ways through one table: `rows` is plain and exact, `batches` quick and needs pyarrow.

    Only `rows` knows where things stand; who meets anything odd in a batch reads the rows instead.
    """

    path: Path
    header: tuple[str, ...]
    place: str  # what a row's number counts: "line" of a text, "row" of a parquet file
    rows: Callable[[], Iterator[Row]]
    batches: Callable[[], Iterator[Batch]]

    def at(self, place: int, column: int | None = None) -> str:
        """How a message names a spot."""
        spot = f"{self.path}: {self.place} {place}"
        return spot if column is None else f"{spot}, column {self.header[column]!r}"

    def wrong(self, place: int, column: int, what: str) -> BadInput:
        return BadInput(f"{self.at(place, column)}: {what}")


def positions(file: TableFile, wanted: Sequence[str]) -> list[int]:
    """Where the wanted columns stand; they, and no others, must be there."""
    refuse_repeated_columns(file)
    for name in wanted:
        if name not in file.header:
            raise missing_column(file, name, wanted)
    for name in file.header:
        if name not in wanted:
            raise BadInput(
                f"{file.path}: column {name!r} is not one of {', '.join(wanted)}; remove it"
            )
    return [file.header.index(name) for name in wanted]


def missing_column(file: TableFile, name: str, wanted: Sequence[str]) -> BadInput:
    others = [column for column in file.header if column not in wanted and column]
    guess = nearest(name, others)
    remedy = f"{guess} Call it {name!r}" if guess.startswith("did") else "add or rename it"
    found = listed(file.header)
    return BadInput(f"{file.path}: column {name!r} is missing (found {found}); {remedy}")


def refuse_repeated_columns(file: TableFile) -> None:
    seen: set[str] = set()
    for column, name in enumerate(file.header):
        if not name:
            raise BadInput(
                f"{file.path}: column {column + 1} has no name in the header; name it or remove it"
            )
        if name in seen:
            raise BadInput(
                f"{file.path}: column {name!r} stands twice in the header; keep one of them"
            )
        seen.add(name)


def listed(names: Iterable[object], first: int = 10) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c"], first=2)
    "'a', 'b' and 1 more"
    """
    names = list(names)
    more = f" and {len(names) - first} more" if len(names) > first else ""
    return ", ".join(map(repr, names[:first])) + more
