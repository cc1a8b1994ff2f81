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
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import ClientId
from fedraw.data.arrays import (
    Samples,
    as_array,
    encode_labels,
    make_dataset,
    read_samples,
)
from fedraw.data.columns import (
    Columns,
    ParsedData,
    is_data_frame,
    is_hugging_face,
    read_table,
    refuse_constant,
)
from fedraw.data.dataset import Dataset, Inputs, check_finite
from fedraw.data.partition import check_partition, client_names, owners_of
from fedraw.errors import BadInput, error_context

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
    known = _read_test(test)
    if isinstance(data, Dataset):
        dataset = data if known is None else _with_test(data, known)
        return dataset if shares is None else with_shares(dataset, shares)
    found = _read_all(data)
    held = known or found.test
    refuse_constant(found)
    names = found.label_names
    if held is not None:
        _check_features(found, held, "the test data")
    if held is not None and held.label_names is not None:
        if names not in (None, held.label_names):
            raise BadInput(
                _label_name_mismatch("test", held.label_names, "the training data", names)
            )
        names = held.label_names
    owners, clients = found.owners, found.clients
    if shares is not None:
        _refuse_second_partition(clients)
        checked = check_partition(shares, len(found.samples.inputs))
        owners, clients = owners_of(checked, len(found.samples.inputs)), tuple(checked)
    return make_dataset(
        found.name,
        found.samples,
        None if held is None else held.samples,
        names,
        holdout=holdout,
        rng=rng,
        owners=owners,
        clients=clients,
    )


def with_shares(dataset: Dataset, shares: Shares) -> Dataset:
    """Return the dataset with each training sample assigned to a client."""
    _refuse_second_partition(dataset.clients)
    checked = check_partition(shares, len(dataset.labels))
    return replace(dataset, owners=owners_of(checked, len(dataset.labels)), clients=tuple(checked))


def with_test(dataset: Dataset, test: Any) -> Dataset:
    """Return the dataset with the user's own test data, in any form, as its test set."""
    known = _read_test(test)
    return dataset if known is None else _with_test(dataset, known)


def is_per_client(data: Any) -> TypeGuard[list[Any] | dict[Any, Any]]:
    """Return whether the data are a list or dictionary with one dataset for each client."""
    # A DatasetDict is a dictionary of splits, not of clients.
    return isinstance(data, list | dict) and not is_hugging_face(data)


def names_clients(data: Any) -> bool:
    """Return whether the data say which client holds each sample."""
    return is_per_client(data) or (isinstance(data, Columns) and data.client is not None)


def _read_all(data: Any) -> ParsedData:
    """Read one form, or a list or dictionary of one form for each client."""
    return _read_clients(data) if is_per_client(data) else _read(data)


def _read(data: Any) -> ParsedData:
    if isinstance(data, Dataset):
        return _read_dataset(data)
    if isinstance(data, tuple):
        if len(data) not in (2, 3):
            raise BadInput(
                f"the data are a tuple of {len(data)}; give (X, y), or (X, y, groups), or a list "
                "with one dataset for each client"
            )
        return ParsedData("arrays", read_samples(*data))
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


def _read_test(test: Any) -> ParsedData | None:
    if test is None:
        return None
    with error_context("test"):
        if isinstance(test, Dataset) and len(test.test_labels):
            return _read_dataset(test).test
        return _read_all(test)


def _read_dataset(data: Dataset) -> ParsedData:
    names = data.label_names if data.has_labels else None
    labels, test_labels = (data.labels, data.test_labels) if data.has_labels else (None, None)
    test = None
    if len(data.test_labels):
        held = Samples(data.test_inputs, test_labels, data.test_targets)
        test = ParsedData(data.name, held, label_names=names)
    return ParsedData(data.name, Samples(data.inputs, labels, data.targets), test, names)


def _with_test(dataset: Dataset, test: ParsedData) -> Dataset:
    samples, names = test.samples, test.label_names
    if names is not None and names != dataset.label_names:
        raise BadInput(
            _label_name_mismatch("the test data", names, "the dataset", dataset.label_names)
        )
    numbers = np.zeros(len(samples.inputs), np.int64)
    if (samples.labels is not None) != dataset.has_labels:
        raise BadInput("only one of the training and the test data has labels; give both the same")
    if samples.labels is not None:
        (numbers,), _ = encode_labels([samples.labels], dataset.label_names)
    return replace(
        dataset, test_inputs=samples.inputs, test_labels=numbers, test_targets=samples.targets
    )


def _read_clients(data: list[Any] | dict[Any, Any]) -> ParsedData:
    """Read the data of each client, and concatenate them."""
    forms = data if isinstance(data, dict) else dict(enumerate(data))
    clients = client_names(forms)
    if not clients:
        raise BadInput("the data have no clients; give at least one dataset")
    found: dict[ClientId, ParsedData] = {}
    for client, form in zip(clients, forms.values(), strict=True):
        with error_context(f"client {client!r}"):
            if names_clients(form):
                raise BadInput("the data of a client have clients themselves; leave client= out")
            found[client] = _read(form)
            if not len(found[client].samples.inputs):
                raise BadInput("the client has no samples; give it some, or leave it out")
            check_finite("inputs", found[client].samples.inputs)
    _check_consistent(found)
    parts = list(found.values())
    tests = [one.test.samples for one in parts if one.test is not None]
    sizes = [len(one.samples.inputs) for one in parts]
    names = parts[0].label_names
    return ParsedData(
        "clients",
        _concatenated([one.samples for one in parts]),
        ParsedData("clients", _concatenated(tests), label_names=names) if tests else None,
        names,
        np.repeat(np.arange(len(parts)), sizes),
        clients,
        parts[0].features,
    )


def _check_consistent(found: Mapping[ClientId, ParsedData]) -> None:
    """Refuse clients whose samples differ in shape, type or kind of labels."""
    (first, one), *others = found.items()
    for client, other in others:
        shapes = one.samples.inputs.shape[1:], other.samples.inputs.shape[1:]
        types = one.samples.inputs.dtype, other.samples.inputs.dtype
        if len(set(shapes)) > 1 or len(set(types)) > 1:
            raise BadInput(
                f"samples of client {client!r} have shape {shapes[1]} and type {types[1]}, and "
                f"those of client {first!r} have shape {shapes[0]} and type {types[0]}; give all "
                "clients the same shape and type"
            )
        _check_features(one, other, f"client {client!r}")
        if one.label_names != other.label_names:
            raise BadInput(
                _label_name_mismatch(
                    f"client {client!r}", other.label_names, f"client {first!r}", one.label_names
                )
            )
        for what in ("labels", "targets"):
            has, lacks = first, client
            own, theirs = getattr(one.samples, what), getattr(other.samples, what)
            if own is None and theirs is not None:
                has, lacks = client, first
            if (own is None) != (theirs is None):
                raise BadInput(
                    f"client {has!r} has {what} and client {lacks!r} has none; give all clients "
                    "the same (labels of a float type are targets of a regression)"
                )
            if own is None or theirs is None:
                continue
            if (own.dtype.kind == "U") != (theirs.dtype.kind == "U"):
                raise BadInput(
                    f"labels of client {client!r} are {theirs.dtype} and those of client "
                    f"{first!r} are {own.dtype}; give all clients names, or all numbers"
                )
            if own.shape[1:] != theirs.shape[1:]:
                raise BadInput(
                    f"{what} of client {client!r} have shape {theirs.shape[1:]} and those of "
                    f"client {first!r} {own.shape[1:]}; give all clients the same shape"
                )


def _check_features(one: ParsedData, other: ParsedData, whose: str) -> None:
    """Refuse data whose columns are not those of the first data in the same order."""
    if one.features and other.features and one.features != other.features:
        raise BadInput(
            f"the inputs of {whose} are the columns {several(other.features, 10)}, and others are "
            f"{several(one.features, 10)}; name the same columns for all with inputs=[...]"
        )


def _concatenated(parts: Sequence[Samples]) -> Samples:
    labels = [part.labels for part in parts if part.labels is not None]
    targets = [part.targets for part in parts if part.targets is not None]
    return Samples(
        Inputs(np.concatenate([part.inputs[:] for part in parts])),
        np.concatenate(labels) if labels else None,
        np.concatenate(targets) if targets else None,
    )


def _read_items(data: Any) -> ParsedData:
    """Read every item of a map-style torch Dataset once, so random transforms are applied once."""
    name = type(data).__name__.lower()
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) in (2, 3):
        return ParsedData(name, read_samples(*tensors))
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
    return ParsedData(name, read_samples(np.stack(inputs), *map(_stacked, columns[1:])))


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


def _refuse_second_partition(clients: Sequence[ClientId]) -> None:
    if clients:
        raise BadInput(
            f"the data already say which samples each of {len(clients)} clients has, and a "
            "partition would divide them again; leave the partition out"
        )


def _label_name_mismatch(
    what: str, names: Sequence[str] | None, other: str, others: Sequence[str] | None
) -> str:
    def listed(names: Sequence[str] | None) -> str:
        return "no label names" if names is None else f"the label names {several(names, 10)}"

    return (
        f"{what} has {listed(names)} and {other} has {listed(others)}; give both the same names in "
        "the same order"
    )


def _described(value: Any) -> str:
    if hasattr(value, "__array__") and hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
