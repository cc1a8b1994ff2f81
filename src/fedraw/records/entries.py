"""Label counts on their way from a file to a `LabelTable`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.types import Ints
from fedraw.errors import BadInput
from fedraw.records.table_file import listed


@dataclass(frozen=True, eq=False)
class Entries:
    """Parallel arrays: the client's position, the label's, the count."""

    clients: Sequence[str]
    labels: Sequence[str]
    row: npt.NDArray[np.integer[Any]]
    column: npt.NDArray[np.integer[Any]]
    count: Ints


@dataclass(frozen=True, eq=False)
class Counts:
    """A table of label counts, and what its reader should be told about it."""

    table: LabelTable
    notes: tuple[str, ...]


def to_counts(entries: Entries) -> Counts:
    """A label that no client has a sample of cannot be rare or common: it is left out."""
    samples = np.bincount(entries.column, weights=entries.count, minlength=len(entries.labels))
    held = samples > 0
    notes: tuple[str, ...] = ()
    if not held.all():
        notes = (_left_out([entries.labels[i] for i in np.flatnonzero(~held).tolist()]),)
        entries = _only(entries, held)
    table = LabelTable.from_entries(
        entries.clients, entries.labels, entries.row, entries.column, entries.count
    )
    return Counts(table, notes)


def _left_out(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"label {labels[0]!r} has no samples and is left out"
    return f"{len(labels)} labels have no samples and are left out: {listed(labels)}"


def _only(entries: Entries, held: npt.NDArray[np.bool_]) -> Entries:
    kept = held[entries.column]
    left_out = entries.row[~kept].astype(np.int64) * len(held) + entries.column[~kept]
    if len(np.unique(left_out)) < len(left_out):  # the table cannot tell any more
        raise BadInput("a client reports a label twice; add the counts")
    labels = [label for label, keep in zip(entries.labels, held, strict=True) if keep]
    column = (np.cumsum(held) - 1)[entries.column[kept]]
    return Entries(entries.clients, labels, entries.row[kept], column, entries.count[kept])
