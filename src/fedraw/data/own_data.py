"""Makes a dataset from a user's own data, in any of the accepted forms.

The forms are:

- a tuple (X, y) or (X, y, groups) of arrays, tensors, or paths of .npy files;
- a `fedraw.Dataset`;
- a map-style torch Dataset with items (x, y) or (x, y, group);
- a Hugging Face Dataset or DatasetDict;
- `Columns`, which name the columns to use of such a data set, of a data frame or of a dictionary of
  arrays;
- a list with one of these forms for each client, or a dictionary of client names and forms.

This module imports neither torch nor Hugging Face's library; it recognises their objects by their
methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.data.arrays import (
    Samples,
    as_array,
    check_alike,
    read_samples,
    to_dataset,
)
from fedraw.data.columns import (
    Columns,
    is_data_frame,
    is_hugging_face,
    read_table,
    refuse_constant,
)
from fedraw.data.dataset import Array, Dataset, Inputs, check_finite
from fedraw.data.partition import check_partition, client_names, owners_of
from fedraw.errors import BadInput, error_context

Given = TypeVar("Given", Dataset, Samples)
# The positions of each client's samples, by the number or the name of the client.
Shares = Sequence[npt.ArrayLike] | Mapping[Any, npt.ArrayLike]

_FORMS = (
    "give (X, y), a fedraw.Dataset, a torch Dataset, a Hugging Face Dataset, fedraw.Columns of a "
    "data frame, or a list or dictionary of these, one for each client"
)


def own_dataset(
    data: Any,
    *,
    test: Any = None,
    shares: Shares | None = None,
    holdout: float = 0.2,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """Make a dataset from a user's own data.

    Args:
        data: The training data, in any form.
        test: The test data, in any form. A `fedraw.Dataset` gives its test samples. By default, the
            test part of `data` is used, or a share of the training data is held out.
        shares: The positions of each client's samples in `data`. A held-out sample belongs to no
            client.
        holdout: The share of each label that is held out if there is no test set.
        rng: The generator that draws the held-out samples.

    """
    if isinstance(data, Dataset):
        dataset: Dataset = data
        if test is not None:
            both = to_dataset(replace(_read_dataset(data), test=_read_test(test)), holdout, rng)
            dataset = replace(
                data,
                test_inputs=both.test_inputs,
                test_labels=both.test_labels,
                test_targets=both.test_targets,
            )
        return dataset if shares is None else _with_shares(dataset, shares)
    found = _read_all(data)
    refuse_constant(found)
    if test is not None:
        found = replace(found, test=_read_test(test))
    return to_dataset(found if shares is None else _with_shares(found, shares), holdout, rng)


def _with_shares(data: Given, shares: Shares) -> Given:
    """Return a dataset, or samples, with each training sample assigned to a client."""
    if data.clients:
        raise BadInput(
            f"the data already say which samples each of {len(data.clients)} clients has, and a "
            "partition would divide them again; leave the partition out"
        )
    size = len(data.inputs)
    checked = check_partition(shares, size)
    return replace(data, owners=owners_of(checked, size), clients=tuple(checked))


def is_per_client(data: Any) -> TypeGuard[list[Any] | dict[Any, Any]]:
    """Return whether the data are a list or dictionary with one dataset for each client."""
    # A DatasetDict is a dictionary of splits, not of clients.
    return isinstance(data, list | dict) and not is_hugging_face(data)


def names_clients(data: Any) -> bool:
    """Return whether the data say which client holds each sample."""
    return is_per_client(data) or (isinstance(data, Columns) and data.client is not None)


def _read_all(data: Any) -> Samples:
    """Read one form, or a list or dictionary of one form for each client."""
    return _read_clients(data) if is_per_client(data) else _read(data)


def _read(data: Any) -> Samples:
    if isinstance(data, Dataset):
        return _read_dataset(data)
    if isinstance(data, tuple):
        if len(data) not in (2, 3):
            raise BadInput(
                f"the data are a tuple of {len(data)}; give (X, y), or (X, y, groups), or a list "
                "with one dataset for each client"
            )
        return read_samples(*data)
    if isinstance(data, Columns):
        return read_table(data)
    if is_hugging_face(data):
        return read_table(Columns(data))
    if is_data_frame(data):
        raise BadInput(
            f"the data are a {type(data).__name__}; name the column of the labels with "
            "fedraw.Columns(data, labels=...), and that of the clients, if there is one, with "
            "client=..."
        )
    is_array = hasattr(data, "__array__") or isinstance(data, str | bytes | list | Mapping)
    if hasattr(data, "__getitem__") and not is_array:
        return _read_items(data)
    raise BadInput(f"the data are {_described(data)}; {_FORMS}")


def _read_test(test: Any) -> Samples:
    with error_context("test"):
        found = _read_all(test)
        return found.test if isinstance(test, Dataset) and found.test is not None else found


def _read_dataset(data: Dataset) -> Samples:
    def samples(inputs: Inputs, labels: Ints, targets: Array | None) -> Samples:
        known = (labels, data.label_names) if data.has_labels else (None, None)
        return Samples(data.name, inputs, known[0], targets, known[1])

    whole = samples(data.inputs, data.labels, data.targets)
    if not len(data.test_labels):
        return whole
    test = samples(data.test_inputs, data.test_labels, data.test_targets)
    return replace(whole, test=test)


def _read_clients(data: list[Any] | dict[Any, Any]) -> Samples:
    """Read the data of each client, and concatenate them."""
    forms = data if isinstance(data, dict) else dict(enumerate(data))
    clients = client_names(forms)
    if not clients:
        raise BadInput("the data have no clients; give at least one dataset")
    parts: list[Samples] = []
    for client, form in zip(clients, forms.values(), strict=True):
        with error_context(f"client {client!r}"):
            if names_clients(form):
                raise BadInput("the data of a client have clients themselves; leave client= out")
            parts.append(_read(form))
            if not len(parts[-1].inputs):
                raise BadInput("the client has no samples; give it some, or leave it out")
            check_finite("inputs", parts[-1].inputs)
        first, this = f"client {clients[0]!r}", f"client {client!r}"
        if (parts[0].label_names is None) != (parts[-1].label_names is None):
            raise BadInput(
                f"only one of {first} and {this} names its labels; give all the same names"
            )
        check_alike(parts[0], parts[-1], first, this)
    tests = [part.test for part in parts if part.test is not None]
    return replace(
        _concatenated(parts),
        owners=np.repeat(np.arange(len(parts)), [len(part.inputs) for part in parts]),
        clients=clients,
        test=_concatenated(tests) if tests else None,
    )


def _concatenated(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts; each part has labels and targets if the first has them."""

    def joined(key: str) -> Any:
        arrays = [getattr(part, key) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    return Samples(
        "clients",
        Inputs(np.concatenate([part.inputs[:] for part in parts])),
        joined("labels"),
        joined("targets"),
        parts[0].label_names,
        parts[0].features,
    )


def _read_items(data: Any) -> Samples:
    """Read every item of a map-style torch Dataset once, so random transforms are applied once."""
    name = type(data).__name__.lower()
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) in (2, 3):
        return read_samples(*tensors, name=name)
    try:
        size = len(data)
    except (TypeError, NotImplementedError):
        raise BadInput(
            f"a {type(data).__name__} has no length, so its samples cannot be given to clients; "
            "use a map-style Dataset, with __len__ and __getitem__"
        ) from None
    items = [_item(data, position) for position in range(size)]
    if not items:
        raise BadInput("the dataset has no items; give at least one")
    columns = [[item[i] for item in items] for i in range(len(items[0]))]
    inputs = [as_array(f"sample {i}", value) for i, value in enumerate(columns[0])]
    shapes = [value.shape for value in inputs]
    odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise BadInput(
            f"sample {odd} has shape {shapes[odd]} and sample 0 has shape {shapes[0]}; make all "
            "samples the same shape, for example by padding"
        )
    return read_samples(np.stack(inputs), *map(_stacked, columns[1:]), name=name)


def _stacked(labels: list[Any]) -> Any:
    if isinstance(labels[0], str):  # a name, where `as_array` expects the name of a file
        return np.asarray(labels)
    return np.stack([as_array("labels", value) for value in labels])


def _item(data: Any, position: int) -> Sequence[Any]:
    item = data[position]  # an error in the user's own class is not caught
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise BadInput(
            f"item {position} of {type(data).__name__} is {_described(item)}; items are (x, y), or "
            "(x, y, group)"
        )
    return item


def _described(value: Any) -> str:
    if hasattr(value, "__array__") and hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
