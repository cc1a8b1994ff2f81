"""Reads columns of a table: a Hugging Face Dataset, a data frame, or a dictionary of arrays.

This module imports neither pandas nor polars nor Hugging Face's library; it recognises their tables
by their methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedraw.core.text import several
from fedraw.data.arrays import Samples, read_columns, read_samples
from fedraw.data.dataset import Array
from fedraw.data.partition import by_column, owners_of
from fedraw.errors import BadInput, error_context

_TEST_SPLITS = ("test", "validation")
_LABEL_COLUMNS = ("label", "labels")

# The longest text in a column that can name clients.
LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Columns:
    """A table, and the columns of it to use.

    Args:
        data: A pandas or polars DataFrame, a dictionary of arrays by column, or a Hugging Face
            Dataset or DatasetDict.
        inputs: The column of the inputs, or a list of columns of numbers, which become the features
            of one input. By default these are all other columns of a data frame, and the only other
            column of a Hugging Face Dataset.
        labels: The column of the labels, or of the targets of a regression (default: the only
            column of class labels, or else the column `label` or `labels`).
        groups: The column that is used as labels if `labels` are targets.
        client: The column that names the client of each row, such as the hospital. Without it, the
            partition of the run divides the rows.

    """

    data: Any
    inputs: str | Sequence[str] | None = None
    labels: str | None = None
    groups: str | None = None
    client: str | None = None


def is_hugging_face(data: Any) -> bool:
    """Return whether the data are a Hugging Face Dataset, or a DatasetDict of them."""
    return hasattr(data, "column_names")


def is_data_frame(data: Any) -> bool:
    """Return whether the data are a data frame of pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def read_table(wanted: Columns) -> Samples:
    """Read the wanted columns of a table of any kind."""
    data = wanted.data
    if is_hugging_face(data):
        if isinstance(data, Mapping):
            return _read_splits(wanted)
        if not hasattr(data, "__len__"):
            raise BadInput(
                f"a {type(data).__name__} has no length, so its samples cannot be given to "
                "clients; load it without streaming"
            )
        kinds: dict[Any, Any] = dict(data.features)
    elif is_data_frame(data) or isinstance(data, Mapping):
        names = list(data) if isinstance(data, Mapping) else list(data.columns)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"two columns are called {twice!r}; give each column a name of its own")
        kinds = dict.fromkeys(names)
    else:
        raise BadInput(
            f"Columns needs a data frame, a dictionary of arrays or a Hugging Face dataset, got "
            f"{type(data).__name__}; give other data as (X, y)"
        )
    labels = _label_column(kinds) if wanted.labels is None else wanted.labels
    return _read_columns(replace(wanted, labels=labels), kinds)


def _read_columns(wanted: Columns, kinds: Mapping[Any, Any]) -> Samples:
    """Read the wanted columns of one table; `kinds` has the features of a Hugging Face Dataset."""
    data, from_hf = wanted.data, is_hugging_face(wanted.data)
    others = [c for c in (wanted.labels, wanted.groups, wanted.client) if c is not None]
    inputs = _inputs(wanted, [c for c in kinds if c not in others], from_hf)
    used = list(dict.fromkeys([*inputs, *others]))
    for column in used:
        if column not in kinds:
            raise BadInput(
                f"the dataset has no column {column!r} (its columns: "
                f"{several(map(str, kinds), 10)}); name its columns with "
                "fedraw.Columns(data, inputs=..., labels=...)"
            )
    table = data.select_columns(used).with_format("numpy")[:] if from_hf else data
    values = {column: _values(column, table[column]) for column in used}
    # A column of a Hugging Face Dataset may have an array in each row.
    alone = from_hf and (wanted.inputs is None or isinstance(wanted.inputs, str))
    x = values[inputs[0]] if alone else _stacked_columns(inputs, values)
    name = "huggingface" if from_hf else "table"
    found = replace(
        read_samples(x, values[wanted.labels], values.get(wanted.groups), name=name),
        label_names=getattr(kinds[wanted.groups or wanted.labels], "names", None),
        features=() if alone else tuple(map(str, inputs)),
    )
    if from_hf:
        rest = [c for c, kind in kinds.items() if c not in used and _can_name_clients(kind)]
        found = replace(found, columns=_names_of_clients(data, rest))
    return found if wanted.client is None else _with_clients(found, wanted.client, values)


def _with_clients(found: Samples, client: str, values: Mapping[Any, Array]) -> Samples:
    """Return the samples with the client of each of them, which a column names."""
    size = len(found.inputs)
    with error_context(f"client = {client!r}"):
        column = read_columns({str(client): values[client]}, size)
        shares = by_column(column[str(client)])
    return replace(found, owners=owners_of(shares, size), clients=tuple(shares))


def _inputs(wanted: Columns, rest: Sequence[Any], from_hf: bool) -> list[Any]:
    """Return the columns of the inputs; `rest` are those with no other use."""
    if wanted.inputs is not None:
        return [wanted.inputs] if isinstance(wanted.inputs, str) else list(wanted.inputs)
    if from_hf and len(rest) != 1:
        raise BadInput(
            f"the inputs could be any of the columns {several(rest, 10)}; name their column with "
            f"fedraw.Columns(data, inputs=..., labels={wanted.labels!r})"
        )
    if not rest:
        raise BadInput(f"no column is left beside {wanted.labels!r}, so none is an input")
    return list(rest)


def _values(name: Any, column: Any) -> Array:
    """Return the values of one column, with texts as text; refuse a missing value."""
    try:
        array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
        if array.dtype.kind == "O" and all(isinstance(row, list | np.ndarray) for row in array):
            array = np.stack([np.asarray(row) for row in array])
    except ValueError:
        raise BadInput(
            f"the rows of column {name!r} do not all have the same shape; pad or resize them"
        ) from None
    if array.ndim == 1 and array.dtype.kind in "fO":
        missing = [row for row, value in enumerate(array.tolist()) if _is_missing(value)]
        if missing:
            raise BadInput(
                f"column {name!r} has no value in {len(missing):,} of {len(array):,} rows (the "
                f"first is row {missing[0]}); fill them, or leave these rows out, for example with "
                "dropna()"
            )
    is_text = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    return array.astype(str) if is_text else array


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def refuse_constant(found: Samples) -> None:
    """Refuse training data with a feature that never varies, or with a single label."""
    values, labels = found.inputs, found.labels
    if not found.features or len(values) < 2:
        return
    constant = np.flatnonzero((values[:] == values[:1]).all(axis=0))
    if constant.size:
        named = several((repr(found.features[i]) for i in constant), 10)
        raise BadInput(
            f"the same number is in every row of {named}, and nothing can be learned from it; "
            "leave such columns out, for example with data.drop(columns=[...])"
        )
    if labels is not None and len(np.unique(labels)) == 1:
        raise BadInput(
            f"every row has the label {labels.flat[0]!s}, so there is nothing to learn; name "
            "another column with labels=..."
        )


def _read_splits(columns: Columns) -> Samples:
    """Read the splits `train` and `test` (or `validation`) of a Hugging Face DatasetDict."""
    splits = columns.data
    if "train" not in splits:
        raise BadInput(
            f"the DatasetDict has the splits {several(map(str, splits))} and no 'train'; give the "
            "split to train on, such as data['all']"
        )
    found = read_table(replace(columns, data=splits["train"]))
    for split in _TEST_SPLITS:
        if split in splits:
            with error_context(f"split {split!r}"):
                return replace(found, test=read_table(replace(columns, data=splits[split])))
    return found


def _can_name_clients(kind: Any) -> bool:
    """Return whether the values of a column, text or whole numbers, can be names of clients."""
    dtype = str(getattr(kind, "dtype", ""))
    return dtype == "string" or dtype.startswith(("int", "uint"))


def _names_of_clients(data: Any, columns: Sequence[str]) -> dict[str, Array]:
    """Return the columns without missing values and without long texts.

    Nobody has asked for these columns yet, so one that cannot name clients is left out.
    """
    found = {}
    for column in columns:
        values = list(data.select_columns([column]).with_format(None)[:][column])
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        if None not in values and longest <= LONGEST_NAME:
            found[column] = np.asarray(values)
    return found


def _label_column(features: Mapping[str, Any]) -> str:
    class_labels = [column for column, kind in features.items() if hasattr(kind, "names")]
    if len(class_labels) == 1:
        return class_labels[0]
    named = [column for column in _LABEL_COLUMNS if column in features]
    if len(named) == 1:
        return named[0]
    raise BadInput(
        f"the labels could be any of the columns {several(features, 10)}; name their column with "
        "fedraw.Columns(data, labels=...)"
    )


def _kind_of(values: Array) -> str:
    """Describe the values of a column that are not one number per row."""
    if values.ndim != 1:
        return f"the shape {values.shape}"
    return "texts" if values.dtype.kind in "UO" else f"the type {values.dtype}"


def _stacked_columns(columns: Sequence[str], values: Mapping[Any, Array]) -> Array:
    for column in columns:
        if values[column].ndim != 1 or values[column].dtype.kind not in "iufb":
            raise BadInput(
                f"column {column!r} has {_kind_of(values[column])}, and an input is made of one "
                "number per row; turn it into numbers (for example with pandas.get_dummies), or "
                "name the columns to use with inputs=[...]"
            )
    return np.stack([values[column].astype(np.float32) for column in columns], axis=1)
