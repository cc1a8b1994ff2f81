"""A Parquet file as a `TableFile`. This module needs pyarrow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput, MissingExtra
from fedraw.storage.tables import Row, TableFile

try:
    import pyarrow
    from pyarrow import parquet, types
except ImportError:
    raise MissingExtra("pyarrow", "audit") from None

_CELLS = 1 << 22  # cells to read at a time
# The name of a pandas index that has no name.
_INDEX = "__index_level_0__"


def open_parquet(path: Path) -> TableFile:
    """Open a Parquet file."""
    try:
        schema = parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    header = tuple(name.strip() for name in schema.names)
    if _INDEX in header:
        raise BadInput(f"{path}: column {_INDEX!r} is an index; write the table with index=False")
    for field in schema:
        _require_plain(path, field)
    return TableFile(path, header, "row", rows=partial(_rows, path))


def _require_plain(path: Path, field: Any) -> None:
    """Allow text and integers as names, and numbers, text and timestamps as values."""
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if field.name in ("client", "label") and not (text or types.is_integer(kind)):
        raise BadInput(
            f"{path}: column {field.name!r} is of type {kind}; store names as text or integers"
        )
    if not (number or text or types.is_null(kind) or types.is_timestamp(kind)):
        raise BadInput(
            f"{path}: column {field.name!r} is of type {kind}; store numbers or text in it"
        )


def _rows(path: Path) -> Iterator[Row]:
    place = 0
    for columns in _columns(path):
        cells = [[_text(value) for value in column.to_pylist()] for column in columns]
        for row in zip(*cells, strict=True):
            place += 1
            yield place, row


def _text(value: Any) -> str:
    # pandas writes NaN for a missing number.
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else str(value)


def _columns(path: Path) -> Iterator[Sequence[Any]]:
    try:
        with parquet.ParquetFile(path) as file:
            size = max(_CELLS // max(file.metadata.num_columns, 1), 1)
            for batch in file.iter_batches(batch_size=size):
                yield [_plain(column) for column in batch.columns]
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _plain(column: Any) -> Any:
    """Return the column without a dictionary, and timestamps as text in ISO 8601."""
    if types.is_dictionary(column.type):  # its dictionary may hold values that no row has
        column = column.cast(column.type.value_type)
    if types.is_timestamp(column.type):
        # As Python objects, nanoseconds would need pandas, and years from 10000 on would fail.
        zone = None if column.type.tz is None else "UTC"
        column = column.cast(pyarrow.timestamp(column.type.unit, zone)).cast(pyarrow.string())
    return column


def _damaged(path: Path, error: Exception) -> BadInput:
    first = str(error).split("\n")[0]
    return BadInput(f"{path}: cannot be read as Parquet ({first}); write it again")
