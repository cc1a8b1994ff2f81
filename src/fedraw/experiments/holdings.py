"""Who holds what: label counts and holders, from the sample numbers of each client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput


def label_table(dataset: Dataset, indices: Sequence[Ints]) -> LabelTable:
    """Each client's label counts; labels stand in the order in which clients first hold them."""
    client = np.repeat(np.arange(len(indices)), [len(own) for own in indices])
    label = dataset.labels[np.concatenate(indices)]
    entry, count = np.unique(client * dataset.classes + label, return_counts=True)
    row, label = np.divmod(entry, dataset.classes)
    held, first = np.unique(label, return_index=True)
    held = held[np.argsort(first)]
    column = np.empty(dataset.classes, np.int64)
    column[held] = np.arange(held.size)
    names = [dataset.label_names[i] for i in held]
    return LabelTable.from_entries(range(len(indices)), names, row, column[label], count)


def label_index(dataset: Dataset, label: int | str, key: str) -> int:
    """Its number; `key` is what a refusal names."""
    try:
        (index,) = dataset.label_indices([label])
    except BadInput as problem:
        raise BadInput(f"{key} = {label!r}: {problem}") from None
    return index


def holders(
    table: LabelTable, dataset: Dataset, labels: Sequence[int | str], key: str
) -> list[int]:
    """Positions of the clients that have a training sample of one of the labels."""
    names = [dataset.label_names[label_index(dataset, label, key)] for label in labels]
    unheld = [name for name in names if name not in table.labels]
    if unheld:
        raise BadInput(f"{key}: no client has a training sample of label {unheld[0]!r}")
    columns = [table.labels.index(name) for name in names]
    held = np.isin(table.column, columns) & (table.count > 0)
    return [int(i) for i in np.unique(table.row_of_entry()[held])]
