"""Label counts in batches of pyarrow: tens of millions of rows in memory for their numbers alone.

Nothing here says what is wrong with a file. Whatever is not plain raises, and the rows tell.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.errors import BadInput
from fedraw.records import cells
from fedraw.records.entries import Entries
from fedraw.records.label_form import Long, Wide
from fedraw.records.table_file import TableFile


class NotPlain(BadInput):
    """Read the rows instead."""


def entries_of_batches(file: TableFile, form: Long | Wide) -> Entries:
    from fedraw.records.arrow import pyarrow

    try:
        return _long(file, form) if isinstance(form, Long) else _wide(file, form)
    except (pyarrow.ArrowException, ValueError, OSError, EOFError, zlib.error) as problem:
        raise NotPlain(str(problem)) from None


def _long(file: TableFile, form: Long) -> Entries:
    clients, labels, counts = [], [], []
    for batch in file.batches():
        clients.append(batch[form.client])
        labels.append(batch[form.label])
        counts.append(_counts(batch[form.count], cells.count))
    client_names, row = _codes(clients)
    label_names, column = _codes(labels)
    return Entries(client_names, label_names, row, column, np.concatenate(counts))


def _wide(file: TableFile, form: Wide) -> Entries:
    clients: list[str] = []
    rows, columns, counts = [], [], []
    for batch in file.batches():
        for label, position in enumerate(form.labels):
            n = _counts(batch[position], cells.count_or_none)
            held = np.flatnonzero(n)
            rows.append(held + len(clients))
            columns.append(np.full(len(held), label, np.int32))
            counts.append(n[held])
        clients += batch[form.client].to_pylist()
    names = _plain_names(clients)
    if len(set(names)) < len(names):
        raise NotPlain("a client stands twice")
    labels = [file.header[position] for position in form.labels]
    row, column = np.concatenate(rows), np.concatenate(columns)
    return Entries(names, labels, row, column, np.concatenate(counts))


def _counts(column: Any, meaning: Callable[[str], int]) -> Ints:
    values = [meaning(text) for text in column.dictionary.to_pylist()]
    positions: npt.NDArray[np.int32] = column.indices.to_numpy()
    return np.array(values, np.int64)[positions]


def _codes(chunks: list[Any]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The names in the order of appearance, and for each row its name's position."""
    from fedraw.records.arrow import pyarrow

    if not chunks:
        raise NotPlain("no rows")
    unified = pyarrow.chunked_array(chunks).unify_dictionaries().chunks
    chunks.clear()  # their dictionaries together can be larger than all that is kept
    names = unified[-1].dictionary.to_pylist()
    return _plain_names(names), np.concatenate([chunk.indices.to_numpy() for chunk in unified])


def _plain_names(names: list[str]) -> list[str]:
    longest = csv.field_size_limit()
    if any(text != text.strip() or "\n" in text or "\r" in text for text in names):
        raise NotPlain("blanks around a name, or a line break in one")
    if not all(names) or max(map(len, names)) >= longest:
        raise NotPlain("a name of no or too many characters")
    return names
