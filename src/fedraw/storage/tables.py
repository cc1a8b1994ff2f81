"""Tables in CSV files (comma, semicolon or tab, optionally gzipped) or Parquet, as rows of text.

The rows of a `TableFile` know their position, so errors name the line.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from fedraw.core.text import several
from fedraw.core.types import LONGEST_TIME, SHORTEST_TIME
from fedraw.errors import BadInput, nearest

# The position of a row in its file, and its cells, as many as the header has.
Row = tuple[int, Sequence[str]]

_HEAD = 1 << 16  # bytes by which a file's format is recognized
# The most characters in a cell. The header of a wide table is one cell if the delimiter is wrong.
_LONGEST_CELL = 1 << 26
_DELIMITERS = ",;\t"
_AS_CSV = "save it as CSV in UTF-8"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class TableFile:
    """A table on disk, whatever its format: a header, and rows of text."""

    path: Path
    header: tuple[str, ...]
    place: str  # what a row's position counts: "line" in text, "row" in a Parquet file
    rows: Callable[[], Iterator[Row]]

    def at(self, place: int, column: int | None = None) -> str:
        """Return the name of a position for error messages."""
        spot = f"{self.path}: {self.place} {place}"
        return spot if column is None else f"{spot}, column {self.header[column]!r}"

    def cell_error(self, place: int, column: int, what: str) -> BadInput:
        """Return the error for a cell."""
        return BadInput(f"{self.at(place, column)}: {what}")

    def client_values(
        self, column: str, parse: Callable[[str], float], *, extra_columns: bool = False
    ) -> Iterator[tuple[int, str, float]]:
        """Yield the position, client and value of each row, from `client` and the given column."""
        client, value = self.positions(("client", column), extra_columns=extra_columns)
        names: dict[str, str] = {}
        for place, texts in self.rows():
            try:
                at = client
                name = names.get(texts[client]) or names.setdefault(
                    texts[client], parse_name(texts[client])
                )
                at = value
                yield place, name, parse(texts[value])
            except UnreadableCell as problem:
                raise self.cell_error(place, at, str(problem)) from None

    def parsed(
        self, columns: Mapping[str, Callable[[str], Any]]
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the position and values of each row; `columns` has a parser for each column."""
        positions = self.positions(tuple(columns), extra_columns=True)
        parsers = list(zip(positions, columns.values(), strict=True))
        for place, texts in self.rows():
            values: list[Any] = []
            try:
                for column, parse in parsers:
                    values.append(parse(texts[column]))
            except UnreadableCell as problem:
                raise self.cell_error(place, positions[len(values)], str(problem)) from None
            yield place, values

    def positions(self, wanted: Sequence[str], *, extra_columns: bool = False) -> list[int]:
        """Return the positions of the wanted columns; refuse extra columns unless allowed."""
        self.refuse_repeated_columns()
        for name in wanted:
            if name not in self.header:
                raise self.missing_column(name, wanted)
        for name in self.header:
            if name not in wanted and not extra_columns:
                raise BadInput(
                    f"{self.path}: column {name!r} is not one of {', '.join(wanted)}; remove it"
                )
        return [self.header.index(name) for name in wanted]

    def missing_column(self, name: str, wanted: Sequence[str]) -> BadInput:
        """Return the error for a missing column; it suggests a similar column to rename."""
        guess = nearest(name, [c for c in self.header if c not in wanted and c])
        remedy = f"{guess} Call it {name!r}" if guess.startswith("did") else "add or rename it"
        found = several(map(repr, self.header), 10)
        return BadInput(f"{self.path}: column {name!r} is missing (found {found}); {remedy}")

    def refuse_repeated_columns(self) -> None:
        """Refuse columns without a name and columns of the same name."""
        seen: set[str] = set()
        for column, name in enumerate(self.header):
            if not name:
                raise BadInput(
                    f"{self.path}: column {column + 1} has no name in the header; name it or "
                    "remove it"
                )
            if name in seen:
                raise BadInput(
                    f"{self.path}: column {name!r} appears twice in the header; keep one of them"
                )
            seen.add(name)


def open_table(path: Path) -> TableFile:
    """Open a Parquet file, recognized by its suffix or first bytes, or else a CSV file."""
    require_file(path)
    if path.suffix == ".parquet" or head(path).startswith(b"PAR1"):
        from fedraw.storage.parquet_table import open_parquet

        return open_parquet(path)
    return _open_csv(path)


class UnreadableCell(ValueError):
    """Says what is wrong with a cell and what to write; the caller adds where the cell is."""


def parse_name(text: str) -> str:
    """Return the name of a client or label, without surrounding spaces.

    >>> parse_name(" 007")
    '007'
    """
    trimmed = text.strip()
    if not trimmed:
        raise UnreadableCell("the name is empty; write one, or remove the row")
    return trimmed


def parse_seconds(text: str) -> float:
    """Return a duration in seconds.

    >>> parse_seconds("0.25")
    0.25
    """
    remedy = "write a number of seconds above 0"
    text = text.strip(" \t")
    value = parse_number(text, f"a time; {remedy}")
    if not 0 < value < math.inf:
        raise UnreadableCell(f"{quoted(text)} is not above 0 and finite; {remedy}")
    if not SHORTEST_TIME <= value <= LONGEST_TIME:
        raise UnreadableCell(
            f"{quoted(text)} is not from {SHORTEST_TIME:g} to {LONGEST_TIME:g}; {remedy}"
        )
    return value


def parse_number(text: str, wanted: str) -> float:
    """Return a decimal number; `wanted` completes the error message "… is not"."""
    if not _NUMBER.fullmatch(text):
        what = quoted(text) if text else "an empty cell"
        raise UnreadableCell(f"{what} is not {wanted}")
    return float(text)


def quoted(text: str) -> str:
    """Return a value in quotes for a message, truncated if it is long."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system and of decoding into messages with a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: line {_undecodable(path)} is not UTF-8; {_AS_CSV}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{path}: damaged gzip file ({error}); compress it again") from None
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{path}: cannot be read ({reason}); make it readable") from None


def require_file(path: Path) -> None:
    """Refuse anything but a regular, non-empty file."""
    with read_errors(path):
        path.stat()
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; name the file in it")
    if not path.is_file():
        raise BadInput(
            f"{path}: is not a regular file; save its contents to one, because it is read twice"
        )
    if not head(path):
        raise BadInput(f"{path}: is empty; a header and rows are needed")


def require_text(path: Path) -> None:
    """Refuse binary files."""
    start = head(path)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput(f"{path}: is UTF-16; {_AS_CSV}")
    if start.startswith(b"PK\x03\x04"):
        raise BadInput(f"{path}: is a workbook or a zip archive; {_AS_CSV}")
    if b"\0" in start:
        raise BadInput(f"{path}: is a binary file; {_AS_CSV}, or name a .parquet file")


def head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed."""
    with read_errors(path), open_bytes(path) as file:
        return file.read(_HEAD)


def open_bytes(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a file, decompressing gzip."""
    return gzip.open(path, "rb") if _is_gzip(path) else path.open("rb")


def _open_text(path: Path) -> IO[str]:
    """Open a file as text, without a byte-order mark and with its original line breaks."""
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _undecodable(path: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 0


def _open_csv(path: Path) -> TableFile:
    require_text(path)
    delimiter, raw = _delimiter_and_header(path)
    header = tuple(name.strip() for name in raw)
    return TableFile(
        path,
        header,
        "line",
        rows=partial(_rows, path, header, delimiter),
    )


def _delimiter_and_header(path: Path) -> tuple[str, list[str]]:
    """Return the delimiter that gives a column `client` or the most columns, and the header."""
    found, problems = [], []
    for delimiter in _DELIMITERS:
        try:
            first = next(_records(path, delimiter), None)
        except BadInput as problem:  # quotes may be malformed for a wrong delimiter only
            problems.append(problem)
            continue
        if first is None:
            raise BadInput(f"{path}: is empty; a header and rows are needed")
        has_client = "client" in map(str.strip, first[1])
        found.append(((has_client, len(first[1])), delimiter, first[1]))
    best = max(found, key=lambda one: one[0], default=None)
    if best is None or (problems and not best[0][0]):
        raise problems[0]
    return best[1], best[2]


def _rows(path: Path, header: tuple[str, ...], delimiter: str) -> Iterator[Row]:
    records = _records(path, delimiter)
    next(records)
    for line, cells in records:
        if len(cells) != len(header):
            raise BadInput(
                f"{path}: line {line} has {len(cells)} cell{'s' if len(cells) > 1 else ''}, the "
                f"header has {len(header)}; correct it (a cell with {delimiter!r} in it needs "
                "quotes)"
            )
        yield line, cells


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank records, each with the line on which it starts."""
    start, lines = 1, list[str]()
    try:
        with read_errors(path), _open_text(path) as file:
            reader = csv.reader(_collecting(file, lines), delimiter=delimiter)
            for cells in _with_long_cells(reader):
                if len(lines) > 1:
                    _refuse_stray_quotes(path, start, lines, delimiter)
                if any(cells):  # spreadsheets append lines of empty cells
                    yield start, cells
                start = reader.line_num + 1
                lines.clear()
    except csv.Error as error:
        raise _malformed(path, start, error) from None


def _collecting(file: Iterable[str], lines: list[str]) -> Iterator[str]:
    for line in file:
        lines.append(line)
        yield line


def _with_long_cells(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Read records with a higher limit on the length of cells, and restore the limit after each.

    The csv module has one limit for the whole process. Its default of 131,072 characters is below
    the header of some tables.
    """
    while True:
        before = csv.field_size_limit(_LONGEST_CELL)
        try:
            cells = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(before)
        yield cells


def _refuse_stray_quotes(path: Path, line: int, lines: list[str], delimiter: str) -> None:
    """Refuse a record of several lines unless its quotes are well-formed.

    Otherwise one stray quote would turn all rows up to the next quote into a single cell.
    """
    try:
        next(_with_long_cells(csv.reader(lines, delimiter=delimiter, strict=True)))
    except csv.Error as error:
        raise _malformed(path, line, error) from None


def _malformed(path: Path, line: int, error: csv.Error) -> BadInput:
    return BadInput(
        f"{path}: line {line}: cannot be split into cells ({error}); "
        'a quote inside quotes is written ""'
    )
