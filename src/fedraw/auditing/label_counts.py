"""Reads tables of label counts: the number of samples of each label at each client.

A table is long (the columns client, label and count) or wide (a column client and one per label).
The column of clients may also be called site. A table is a file or a DataFrame.
Every table is read row by row, with errors that name the line.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LARGEST_COUNT, REMEDY, LabelTable
from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.errors import BadInput
from fedraw.storage.tables import (
    Row,
    TableFile,
    UnreadableCell,
    open_table,
    parse_name,
    parse_number,
    quoted,
)

_LONG = ("client", "label", "count")
_CLIENT = ("client", "site")
_MISSING = ("nan", "None", "<NA>", "NaT")
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)

T = TypeVar("T")


@runtime_checkable
class Frame(Protocol):
    """A DataFrame of pandas or polars, neither of which fedraw needs."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""


@dataclass(frozen=True, eq=False)
class CountsFile:
    """The table of label counts in a file, and notes about it for the user."""

    table: LabelTable
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LongForm:
    """One row for each client and label; the positions of the three columns."""

    client: int
    label: int
    count: int


@dataclass(frozen=True)
class WideForm:
    """One row for each client; the positions of the client and of each label's counts."""

    client: int
    labels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Entries:
    """Parallel arrays: the position of the client, the position of the label, the count."""

    clients: Sequence[str]
    labels: Sequence[str]
    row: npt.NDArray[np.integer[Any]]
    column: npt.NDArray[np.integer[Any]]
    count: Ints


def read_label_counts(path: Path) -> CountsFile:
    """Read a CSV file (gzipped or not) or a Parquet file; names are text."""
    file = with_clients(open_table(path))
    form = form_of(file)
    return _without_empty_labels(entries_of_rows(file, form))


def counts_of_frame(frame: Frame) -> CountsFile:
    """Read the label counts in a DataFrame, in the forms of a file; names are text."""
    table: Any = frame
    index = getattr(table, "index", None)
    if not {*_CLIENT} & {*table.columns} and getattr(index, "name", None) in _CLIENT:
        table = table.reset_index()

    def rows() -> Iterator[Row]:
        found = table.iter_rows() if hasattr(table, "iter_rows") else table.itertuples(index=False)
        for place, values in enumerate(found, 1):
            yield place, list(map(_cell_text, values))

    header = tuple(map(str, table.columns))
    if not header:
        raise BadInput("the DataFrame has no columns; give the columns site, label and count")
    file = with_clients(TableFile(Path("the DataFrame"), header, "row", rows))
    form = form_of(file)
    try:
        return _without_empty_labels(entries_of_rows(file, form))
    except BadInput as problem:
        sites = [row[form.client] for _, row in rows()]
        if isinstance(form, LongForm) or len(set(sites)) == len(sites):
            raise
        own = table.columns[form.client]
        raise BadInput(
            f"{problem}; or if each row is one sample, count the samples first, for example with "
            f"pandas.crosstab(data[{own!r}], data[...]) and the column of the labels"
        ) from None


def times_of_frame(frame: Frame) -> dict[str, float]:
    """Read the mean time of each client in a DataFrame with the columns client and seconds."""
    table: Any = frame
    columns = list(map(str, table.columns))
    client = next((name for name in _CLIENT if name in columns), None)
    if client is None or "seconds" not in columns:
        raise BadInput(
            f"the DataFrame of times has the columns {', '.join(columns)}; give the columns site "
            "and seconds, with a row for each site"
        )
    names = list(map(_cell_text, table[client]))
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"the DataFrame of times has site {twice[0]!r} twice; give its mean time")
    return dict(zip(names, table["seconds"], strict=True))


def _cell_text(value: object) -> str:
    """Return a cell of a DataFrame as text; a missing value is empty.

    >>> _cell_text(float("nan")), _cell_text("nan"), _cell_text(3.0)
    ('', 'nan', '3.0')
    """
    text = str(value)
    return "" if text in _MISSING and not isinstance(value, str) else text


def with_clients(file: TableFile) -> TableFile:
    """Call the column of clients "client" if its name is site."""
    if "client" in file.header or "site" not in file.header:
        return file
    at = file.header.index("site")
    return replace(file, header=(*file.header[:at], "client", *file.header[at + 1 :]))


def form_of(file: TableFile) -> LongForm | WideForm:
    """Return the form of a table, long or wide, according to its header."""
    if "label" in file.header or "count" in file.header:
        return LongForm(*file.positions(_LONG))
    if file.header[0].startswith(("{", "[")):
        raise BadInput(
            f"{file.path} is JSON; give a CSV or Parquet table with the columns client,label,count"
        )
    if "client" not in file.header:
        raise file.missing_column("client", _LONG)
    file.refuse_repeated_columns()
    if len(file.header) == 1:
        raise BadInput(
            f"{file.path}: the only column is 'client'; add the columns label and count, or one "
            "column of counts for each label"
        )
    if {*file.header} in ({"client", "seconds"}, {"client", "timestamp"}):
        raise BadInput(
            f"{file.path} has the columns {', '.join(file.header)}: these are times, not label "
            "counts; give it as times=..."
        )
    client = file.header.index("client")
    return WideForm(client, tuple(i for i in range(len(file.header)) if i != client))


def parse_count(text: str) -> int:
    """Parse a label count; 3.0 counts as 3, because tables with gaps are often saved that way.

    >>> parse_count("3.0")
    3
    """
    text = text.strip(" \t")
    if _DIGITS.fullmatch(text):
        value: float = int(text)
    elif not text:
        raise UnreadableCell(f"the count is missing; {REMEDY}")
    else:
        value = parse_number(text, f"a count; {REMEDY}")
    if value < 0:
        raise UnreadableCell(f"{quoted(text)} is negative; {REMEDY}")
    if value > LARGEST_COUNT:
        raise UnreadableCell(f"{quoted(text)} is too large to be exact; {REMEDY}")
    if value != math.floor(value):
        raise UnreadableCell(f"{quoted(text)} is fractional; {REMEDY}")
    return int(value)


def _count_or_zero(text: str) -> int:
    """Parse a cell of a wide table, where an empty cell is 0."""
    return parse_count(text) if text.strip(" \t") else 0


def _without_empty_labels(entries: Entries) -> CountsFile:
    """Build the table; labels without samples are left out, because they have no rarity."""
    samples = np.bincount(entries.column, weights=entries.count, minlength=len(entries.labels))
    held = samples > 0
    notes: tuple[str, ...] = ()
    if not held.all():
        empty = [repr(entries.labels[i]) for i in np.flatnonzero(~held).tolist()]
        notes = (
            f"label {empty[0]} has no samples and is left out"
            if len(empty) == 1
            else f"{len(empty)} labels have no samples and are left out: {several(empty, 10)}",
        )
        kept = held[entries.column]
        left_out = entries.row[~kept].astype(np.int64) * len(held) + entries.column[~kept]
        if len(np.unique(left_out)) < len(left_out):  # the table itself could no longer detect this
            raise BadInput("a client reports a label twice; add the counts")
        names = [label for label, keep in zip(entries.labels, held, strict=True) if keep]
        column = (np.cumsum(held) - 1)[entries.column[kept]]
        entries = Entries(entries.clients, names, entries.row[kept], column, entries.count[kept])
    notes += tuple(
        f"label {label!r} has as many samples as all others together at every client; if it is a "
        "total and no label, remove it"
        for label in _totals(entries)
    )
    table = LabelTable.from_entries(
        entries.clients, entries.labels, entries.row, entries.column, entries.count
    )
    return CountsFile(table, notes)


def _totals(entries: Entries) -> list[str]:
    """Return the labels whose counts are the sum of all others at every client."""
    clients, labels = len(entries.clients), len(entries.labels)
    if clients < 2 or labels < 3:  # equal counts of two labels are nothing unusual
        return []
    samples = np.bincount(entries.row, weights=entries.count, minlength=clients)
    is_half = 2 * entries.count == samples[entries.row]
    found = np.bincount(entries.column[is_half], minlength=labels) == clients
    return [entries.labels[i] for i in np.flatnonzero(found).tolist()]


def entries_of_rows(file: TableFile, form: LongForm | WideForm) -> Entries:
    """Read row by row: errors name the line, and a million rows take about a second."""
    rows = _Rows(file)
    labels = rows.long(form) if isinstance(form, LongForm) else rows.wide(form)
    if not rows.clients:
        raise BadInput(f"{file.path}: there are no rows below the header; add some")
    arrays = (_integers(values) for values in (rows.row, rows.column, rows.count))
    entries = Entries(list(rows.clients), labels, *arrays)
    rows.refuse_repeats(entries)
    rows.refuse_empty_clients(entries)
    return entries


class _Rows:
    """Collects the entries of a table row by row."""

    def __init__(self, file: TableFile) -> None:
        self.file = file
        self.clients: dict[str, int] = {}
        self.first = array("q")  # the line on which each client appears first
        self.row, self.column, self.count, self.place = (array("q") for _ in range(4))

    def long(self, form: LongForm) -> list[str]:
        """Read a long table and return its labels."""
        labels: dict[str, int] = {}
        counts: dict[str, int] = {}  # a cache: few counts differ, and parsing one takes time
        for place, row in self.file.rows():
            client = self._client(row[form.client], place, form.client)
            label = labels.get(row[form.label])
            if label is None:
                name = self._cell(parse_name, row[form.label], place, form.label)
                label = labels.setdefault(name, len(labels))
            n = counts.get(row[form.count])
            if n is None:
                n = self._cell(parse_count, row[form.count], place, form.count)
                counts[row[form.count]] = n
            self._add(client, label, n, place)
        return list(labels)

    def wide(self, form: WideForm) -> list[str]:
        """Read a wide table and return its labels."""
        counts: dict[str, int] = {}
        for place, row in self.file.rows():
            client = self._client(row[form.client], place, form.client)
            if self.first[client] != place:
                raise self.file.cell_error(
                    place,
                    form.client,
                    f"client {parse_name(row[form.client])!r} is already on {self.file.place} "
                    f"{self.first[client]}; keep one row for each client",
                )
            for label, column in enumerate(form.labels):
                n = counts.get(row[column])
                if n is None:
                    n = self._cell(_count_or_zero, row[column], place, column)
                    counts[row[column]] = n
                if n:
                    self._add(client, label, n, place)
        return [self.file.header[column] for column in form.labels]

    def refuse_repeats(self, entries: Entries) -> None:
        """Refuse a client that reports a label twice."""
        row, column = entries.row, entries.column
        order = np.lexsort((column, row))
        again = (np.diff(row[order]) == 0) & (np.diff(column[order]) == 0)
        if not again.any():
            return
        later = order[1:][again]
        i = int(np.argmin(later))  # entries are in the order of the file
        before, after = self.place[order[:-1][again][i]], self.place[later[i]]
        raise BadInput(
            f"{self.file.at(after)}: client {entries.clients[row[later[i]]]!r} and label "
            f"{entries.labels[column[later[i]]]!r} are already on {self.file.place} {before}; "
            "keep one row with the sum of the counts"
        )

    def refuse_empty_clients(self, entries: Entries) -> None:
        """Refuse clients without any samples."""
        totals = np.bincount(entries.row, weights=entries.count, minlength=len(entries.clients))
        empty = np.flatnonzero(totals == 0)
        if empty.size:
            first = int(empty[0])
            others = [repr(entries.clients[i]) for i in empty[1:]]
            too = f", nor has {several(others, 10)}" if others else ""
            raise BadInput(
                f"{self.file.at(self.first[first])}: client {entries.clients[first]!r} has no "
                f"samples of any label{too}; leave it out or report its counts"
            )

    def _client(self, text: str, place: int, column: int) -> int:
        known = self.clients.get(text)
        if known is None:
            name = self._cell(parse_name, text, place, column)
            known = self.clients.setdefault(name, len(self.clients))
            if known == len(self.first):
                self.first.append(place)
        return known

    def _cell(self, parse: Callable[[str], T], text: str, place: int, column: int) -> T:
        try:
            return parse(text)
        except UnreadableCell as problem:
            raise self.file.cell_error(place, column, str(problem)) from None

    def _add(self, row: int, column: int, n: int, place: int) -> None:
        self.row.append(row)
        self.column.append(column)
        self.count.append(n)
        self.place.append(place)


def _integers(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)
