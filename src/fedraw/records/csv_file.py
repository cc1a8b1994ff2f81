"""Comma-, semicolon- or tab-separated text as a `TableFile`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.records.files import open_bytes, open_text, read_errors, require_text
from fedraw.records.table_file import Batch, Row, TableFile

_DELIMITERS = ",;\t"
_BLOCK = 1 << 24  # bytes that pyarrow reads at a time
# Characters in a cell. The header of a wide table is one cell while another delimiter is tried.
_LONGEST_CELL = 1 << 26


def open_csv(path: Path) -> TableFile:
    require_text(path)
    delimiter, raw = max(
        ((delimiter, _header(path, delimiter)) for delimiter in _DELIMITERS), key=_likelihood
    )
    header = tuple(name.strip() for name in raw)
    return TableFile(
        path,
        header,
        "line",
        rows=partial(_rows, path, header, delimiter),
        batches=partial(_batches, path, raw, delimiter),
    )


def _header(path: Path, delimiter: str) -> list[str]:
    for _, cells in _records(path, delimiter):
        return cells
    raise BadInput(f"{path}: is empty; a header and rows are needed")


def _likelihood(read: tuple[str, list[str]]) -> tuple[bool, int]:
    """A header that names `client` was split where its author meant it to be."""
    cells = [name.strip() for name in read[1]]
    return "client" in cells, len(cells)


def _rows(path: Path, header: tuple[str, ...], delimiter: str) -> Iterator[Row]:
    records = _records(path, delimiter)
    next(records)
    for line, cells in records:
        if len(cells) != len(header):
            raise BadInput(
                f"{path}: line {line} has {len(cells)} cell{'s' if len(cells) > 1 else ''}, the "
                f"header has {len(header)}; mend it (a cell with {delimiter!r} in it needs quotes)"
            )
        yield line, cells


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Records that are not blank, each with the line on which it starts."""
    start, lines = 1, list[str]()
    try:
        with read_errors(path), open_text(path) as file:
            reader = csv.reader(_keeping(file, lines), delimiter=delimiter)
            for cells in _with_long_cells(reader):
                if len(lines) > 1:
                    _refuse_stray_quotes(path, start, lines, delimiter)
                if any(cells):  # a spreadsheet ends in lines of empty cells
                    yield start, cells
                start = reader.line_num + 1
                lines.clear()
    except csv.Error as error:
        raise _no_table(path, start, error) from None


def _with_long_cells(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The records, under a limit of our own: that of the csv module belongs to the whole process.

    Its default of 131,072 characters is less than the header of some tables.
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


def _keeping(file: Iterable[str], lines: list[str]) -> Iterator[str]:
    for line in file:
        lines.append(line)
        yield line


def _refuse_stray_quotes(path: Path, line: int, lines: list[str], delimiter: str) -> None:
    """A record may span lines only inside well-formed quotes.

    One quote too many would otherwise turn all rows up to the next quote into a single cell.
    """
    try:
        next(_with_long_cells(csv.reader(lines, delimiter=delimiter, strict=True)))
    except csv.Error as error:
        raise _no_table(path, line, error) from None


def _no_table(path: Path, line: int, error: csv.Error) -> BadInput:
    return BadInput(
        f"{path}: line {line}: cannot be split into cells ({error}); "
        'a quote inside quotes is written ""'
    )


def _batches(path: Path, header: list[str], delimiter: str) -> Iterator[Batch]:
    from fedraw.records.arrow import csv as arrow_csv
    from fedraw.records.arrow import pyarrow

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    with open_bytes(path) as file:
        reader = arrow_csv.open_csv(
            file,
            arrow_csv.ReadOptions(block_size=_BLOCK),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, text)),
        )
        if reader.schema.names != header:
            raise BadInput(f"{path}: pyarrow reads another header; {header}")
        for batch in reader:
            yield batch.columns
