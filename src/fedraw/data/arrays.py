"""Makes a dataset from a user's own arrays, or from an .npz file of them."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from fedraw.core.labels import NO_LABELS
from fedraw.core.types import ClientId, Ints
from fedraw.data.dataset import Array, Dataset, Inputs, check_samples, model_dtype
from fedraw.data.partition import stratified_holdout
from fedraw.errors import BadInput, nearest

# A dataset with a larger label is refused: the labels are probably identifiers, not classes.
_MAX_LABELS = 65_536
_REQUIRED = ("inputs", "labels")
_OPTIONAL = ("groups", "test_inputs", "test_labels", "test_groups", "label_names")
# Alternative names of keys in an .npz file.
_ALIASES = {"images": "inputs", "test_images": "test_inputs"}
# Prefix of the keys of columns: arrays with one value for each sample, to make clients from.
_COLUMN = "column_"
_UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, MemoryError)


def from_arrays(  # noqa: PLR0913 - one argument for each array
    inputs: Any,
    labels: Any,
    *,
    name: str = "arrays",
    groups: Any = None,
    test_inputs: Any = None,
    test_labels: Any = None,
    test_groups: Any = None,
    label_names: Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    holdout: float = 0.2,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """Make a dataset from your own arrays, tensors, or paths of .npy files.

    Inputs of type uint8 stand for 0..1 in steps of 1/255. Other whole numbers (token ids) become
    int64, and all other numbers float32. A memory-mapped array stays in its file.

    Labels are whole numbers from 0, or names, which are numbered in the order of `label_names`
    (default: alphabetical). Labels of a float type are the targets of a regression. With `groups`,
    `labels` are targets of any numeric type, and all methods and metrics use the groups as labels.
    Each of the `columns` has one value for each training sample, such as its hospital, and
    `fedraw.ByColumn` makes one client of each value. Without test arrays, a share `holdout` of each
    label or group, drawn with `rng`, becomes the test set.

    >>> rng = np.random.default_rng(0)
    >>> data = from_arrays(np.eye(4), ["b", "a", "b", "a"], holdout=0.5, rng=rng)
    >>> data.label_names, data.labels.tolist(), data.test_labels.tolist()
    (('a', 'b'), [1, 0], [1, 0])
    >>> ages = from_arrays(np.eye(4), [21.5, 34, 60, 47], groups=["f", "m", "f", "m"], rng=rng)
    >>> ages.label_names, ages.targets
    (('f', 'm'), array([34., 60.], dtype=float32))
    """
    train = read_samples(inputs, labels, groups)
    test = None
    if test_inputs is not None and test_labels is not None:
        test = read_samples(test_inputs, test_labels, test_groups, "test_")
    elif test_inputs is not None or test_labels is not None:
        raise BadInput("only one of test_inputs and test_labels is given; give both, or neither")
    train = replace(train, columns=read_columns(columns or {}, len(train.inputs)))
    return make_dataset(name, train, test, label_names, holdout=holdout, rng=rng)


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples before their labels are numbered: labels may be names, or None if there are none.

    `columns` is the same as in `Dataset`.
    """

    inputs: Inputs
    labels: Array | None
    targets: Array | None = None
    columns: Mapping[str, Array] = field(default_factory=dict)


def read_samples(inputs: Any, labels: Any, groups: Any = None, prefix: str = "") -> Samples:
    """Read the arrays of one set of samples; messages name the arrays with `prefix`."""
    x = Inputs(as_inputs(f"{prefix}inputs", inputs))
    y = as_array(f"{prefix}labels", labels)
    if groups is None and (y.dtype.kind != "f" or not y.size):
        return Samples(x, _per_sample(f"{prefix}labels", x, _as_labels(f"{prefix}labels", y)))
    if y.shape[:1] != x.shape[:1]:
        raise BadInput(
            f"{prefix}inputs have shape {x.shape} and {prefix}labels {y.shape}; give one target "
            "for each sample"
        )
    targets = _as_targets(f"{prefix}labels", y)
    if groups is None:
        return Samples(x, None, targets)
    group_labels = _as_labels(f"{prefix}groups", as_array(f"{prefix}groups", groups))
    return Samples(x, _per_sample(f"{prefix}groups", x, group_labels), targets)


def _per_sample(key: str, inputs: Inputs, labels: Array) -> Array:
    """Return the labels, or raise BadInput if there is not one for each sample."""
    if labels.shape != inputs.shape[:1]:
        raise BadInput(
            f"inputs have shape {inputs.shape} and {key} {labels.shape}; they need (n, ...) and "
            "(n,), one for each sample"
        )
    return labels


def make_dataset(
    name: str,
    train: Samples,
    test: Samples | None,
    label_names: Sequence[str] | None = None,
    *,
    holdout: float = 0.2,
    rng: np.random.Generator | None = None,
    owners: Ints | None = None,
    clients: Sequence[ClientId] = (),
) -> Dataset:
    """Number the labels of the samples, and hold out a test set if there is none.

    `owners` and `clients` are the same as in `Dataset`. A client whose samples would all be held
    out keeps them.
    """
    if test is None and rng is None:
        raise BadInput(
            "there are no test arrays; give them, or pass rng = a generator to hold out a test set"
        )
    parts = [train] if test is None else [train, test]
    _check_same_kind(parts)
    has_labels = train.labels is not None
    if has_labels:
        numbers, names = encode_labels([part.labels for part in parts], label_names)
    else:
        numbers, names = [np.zeros(len(part.inputs), np.int64) for part in parts], (NO_LABELS,)
    if test is not None:
        return Dataset(
            name, train.inputs, numbers[0], test.inputs, numbers[1], names, (), train.targets,
            test.targets, owners, tuple(clients), has_labels, train.columns,
        )  # fmt: skip
    assert rng is not None
    (labels,) = numbers
    check_samples("", train.inputs, labels, len(names))
    kept, held = stratified_holdout(labels, holdout, rng)
    if owners is not None:
        kept, held = _return_to_empty_clients(owners, len(clients), kept, held)
    x, y = train.inputs, train.targets
    return Dataset(
        name, x.select(kept), labels[kept], x.select(held), labels[held], names, (),
        None if y is None else y[kept], None if y is None else y[held],
        None if owners is None else owners[kept], tuple(clients), has_labels,
        {column: values[kept] for column, values in train.columns.items()},
    )  # fmt: skip


def read_columns(columns: Mapping[str, Any], samples: int) -> dict[str, Array]:
    """Return the columns as arrays of text or whole numbers, one value for each sample."""
    read = {}
    for name, values in columns.items():
        array = _as_labels(f"column {name!r}", as_array(f"column {name!r}", values))
        if array.shape != (samples,):
            raise BadInput(
                f"column {name!r} has shape {array.shape} for {samples} samples; give one value "
                "for each sample"
            )
        read[str(name)] = array
    return read


def _return_to_empty_clients(
    owners: Ints, clients: int, kept: Ints, held: Ints
) -> tuple[Ints, Ints]:
    """Move the held-out samples of clients without other samples back to the training set."""
    kept_owners = owners[kept]
    has_none = np.bincount(kept_owners[kept_owners >= 0], minlength=clients) == 0
    returned = (owners[held] >= 0) & has_none[owners[held]]
    return np.sort(np.concatenate([kept, held[returned]])), held[~returned]


def load_npz(path: Path, rng: np.random.Generator) -> Dataset:
    """Load a dataset from an .npz file of your own.

    The file has `inputs` and `labels`, and optionally `groups`, `test_inputs`, `test_labels`,
    `test_groups`, `label_names` and columns such as `column_hospital`. Inputs may also be called
    `images`. The arrays may be anything that `from_arrays` accepts. Loading never executes code
    from the file.
    """
    arrays = _read_npz(Path(path))
    names = arrays.pop("label_names", None)
    columns = {
        key.removeprefix(_COLUMN): arrays.pop(key) for key in list(arrays) if _is_column(key)
    }
    try:
        return from_arrays(
            arrays.pop("inputs"),
            arrays.pop("labels"),
            name=Path(path).stem,
            label_names=None if names is None else names.astype(str).ravel().tolist(),
            columns=columns,
            rng=rng,
            **arrays,
        )
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def as_inputs(key: str, inputs: Any) -> Array:
    """Convert inputs to an array of the type `model_dtype`; a memory map is returned unchanged.

    >>> as_inputs("inputs", np.array([[0, 255]], dtype=np.uint8)).dtype
    dtype('uint8')
    >>> as_inputs("inputs", [[0, 255]]).dtype, as_inputs("inputs", [[0.5]]).dtype
    (dtype('int64'), dtype('float32'))
    """
    array = as_array(key, inputs)
    if array.dtype.kind not in "iufb":
        raise BadInput(f"{key} have type {array.dtype}; give an array of numbers")
    if isinstance(array, np.memmap):
        return array
    with np.errstate(over="ignore"):  # an overflow becomes inf, which Dataset refuses
        return array.astype(model_dtype(array.dtype), copy=False)


def as_array(key: str, values: Any) -> Array:
    """Convert an array, a torch tensor or nested lists; map the file of an .npy path."""
    if isinstance(values, str | os.PathLike):
        return _map_npy(key, Path(values))
    if hasattr(values, "detach"):  # a torch tensor, which may be on another device
        values = values.detach().cpu()
        try:
            return np.asarray(values.numpy())
        except TypeError:
            raise BadInput(
                f"{key} are a tensor of {values.dtype}, which NumPy does not have; "
                "convert it with .float()"
            ) from None
    if np.ma.is_masked(values):
        raise BadInput(f"{key} have masked values; fill them, or leave these samples out")
    try:
        return np.asanyarray(values)
    except ValueError:  # rows of different lengths
        raise BadInput(
            f"{key} do not all have the same shape; give an array, not ragged lists"
        ) from None


def _map_npy(key: str, path: Path) -> Array:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise BadInput(f"{key}: {path}: {error.strerror}; give the path of an .npy file") from None
    except ValueError as error:
        raise BadInput(
            f"{key}: {path} is not an .npy file ({error}); write it with numpy.save"
        ) from None
    if not isinstance(mapped, np.ndarray):
        mapped.close()
        raise BadInput(f"{key}: {path} is an archive of arrays; give the path of an .npy file")
    return mapped


def encode_labels(
    parts: Sequence[Any], label_names: Sequence[str] | None
) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the labels of all parts consistently, and return the names of the labels.

    >>> encode_labels([["dog", "cat"], ["dog"]], None)
    ([array([1, 0]), array([1])], ('cat', 'dog'))
    >>> encode_labels([[0, 2]], None)
    ([array([0, 2])], ('0', '1', '2'))
    """
    arrays = [_as_labels("labels", as_array("labels", part)) for part in parts]
    are_names = {array.dtype.kind for array in arrays if array.size} == {"U"}
    if not are_names and any(array.dtype.kind == "U" for array in arrays if array.size):
        raise BadInput("labels are names in one array and numbers in the other; use one of the two")
    names = _label_names(arrays, label_names, are_names)
    if are_names:
        return [_label_numbers(array, names) for array in arrays], names
    return [array.astype(np.int64) for array in arrays], names


def _check_same_kind(parts: Sequence[Samples]) -> None:
    """Refuse a test set whose inputs or targets differ in kind from those of the training set."""
    first, *others = parts
    for other in others:
        if first.inputs.dtype != other.inputs.dtype:
            raise BadInput(
                f"inputs are {first.inputs.dtype} and test_inputs are {other.inputs.dtype}, but "
                "only uint8 is divided by 255, and only whole numbers stay whole; give both the "
                "same type"
            )
        for what in ("labels", "targets"):
            if (getattr(first, what) is None) != (getattr(other, what) is None):
                has, lacks = "training", "test"
                if getattr(first, what) is None:
                    has, lacks = lacks, has
                raise BadInput(
                    f"the {has} data have {what} and the {lacks} data have none; give both the "
                    "same (labels of a float type are targets of a regression)"
                )


def _as_targets(key: str, values: Array) -> Array:
    if values.dtype.kind not in "iufb":
        raise BadInput(f"{key} have type {values.dtype}; with groups, give numbers to predict")
    dtype = np.int64 if values.dtype.kind in "iu" else np.float32
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype)


def _as_labels(key: str, array: Array) -> Array:
    # Data frames hold text as objects.
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        return array.astype(str)
    if array.size and array.dtype.kind not in "iubU":
        raise BadInput(
            f"{key} have type {array.dtype} (the first is {array.flat[0]!r}); "
            "give whole numbers from 0, or names"
        )
    if array.dtype.kind == "u" and _largest([array]) > np.iinfo(np.int64).max:
        _refuse_large(_largest([array]))  # the label would be negative as int64
    return np.asarray(array)


def _largest(arrays: Sequence[Array]) -> int:
    """Return the largest number of all arrays, or -1 if they are empty.

    The arrays are not concatenated, because NumPy converts uint64 beside int64 to floats.
    """
    return max((int(array.max()) for array in arrays if array.size), default=-1)


def _refuse_large(label: int) -> NoReturn:
    raise BadInput(
        f"label {label} is too large for a class; number the labels from 0 without gaps, or give "
        "names as labels"
    )


def _label_names(
    arrays: list[Array], given: Sequence[str] | None, are_names: bool
) -> tuple[str, ...]:
    if given is not None:
        return tuple(str(name) for name in given)
    if are_names:
        values = np.concatenate([array.ravel() for array in arrays if array.size])
        return tuple(str(name) for name in np.unique(values))
    largest = _largest(arrays)
    if largest >= _MAX_LABELS:
        _refuse_large(largest)
    return tuple(str(number) for number in range(largest + 1))


def _label_numbers(labels: Array, names: tuple[str, ...]) -> Ints:
    number = {name: position for position, name in enumerate(names)}
    unknown = next((str(label) for label in labels.flat if str(label) not in number), None)
    if unknown is not None:
        raise BadInput(f"label {unknown!r} is not among label_names; {nearest(unknown, names)}")
    coded = np.array([number[str(label)] for label in labels.flat], dtype=np.int64)
    return coded.reshape(labels.shape)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        # Given a path, numpy.load would leave a broken archive open.
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; give the path of an .npz file") from error
    with file:
        archive = _open_archive(path, file)
        _check_keys(path, archive.files)
        keys = {key: _ALIASES.get(key, key) for key in archive.files}
        return {name: _read_array(path, archive, key) for key, name in keys.items()}


def _open_archive(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except _UNREADABLE:
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise BadInput(
            f"{path}: not an .npz file; write it with numpy.savez(path, inputs=..., labels=...)"
        )
    return archive


def _check_keys(path: Path, keys: list[str]) -> None:
    known = (*_REQUIRED, *_OPTIONAL, *_ALIASES)
    for key in keys:
        if key not in known and not _is_column(key):
            raise BadInput(f"{path}: unknown key {key!r}; {nearest(key, known)}")
        if _ALIASES.get(key) in keys:
            raise BadInput(f"{path}: {key!r} and {_ALIASES[key]!r} mean the same; keep one of them")
    named = {_ALIASES.get(key, key) for key in keys}
    for key in _REQUIRED:
        if key not in named:
            found = ", ".join(keys) or "no key at all"
            raise BadInput(f"{path}: key {key!r} is missing (found {found}); add it")


def _is_column(key: str) -> bool:
    return key.startswith(_COLUMN) and key != _COLUMN


def _read_array(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> Array:
    try:
        array: Array = archive[key]
    except _UNREADABLE as error:
        raise BadInput(
            f"{path}: key {key!r} cannot be read ({error}); save plain arrays of numbers or text, "
            "not objects"
        ) from error
    return array
