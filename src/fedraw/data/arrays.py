"""Makes a dataset from a user's own arrays, or from an .npz file of them."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.labels import NO_LABELS
from fedraw.core.text import several
from fedraw.core.types import ClientId, Ints
from fedraw.data.dataset import Array, Dataset, Inputs, model_dtype
from fedraw.data.partition import stratified_holdout
from fedraw.errors import BadInput, error_context, nearest

# A dataset with a larger label is refused: the labels are probably identifiers, not classes.
_MAX_LABELS = 65_536
_REQUIRED = ("inputs", "labels")
_OPTIONAL = ("groups", "test_inputs", "test_labels", "test_groups", "label_names")
# Alternative names of keys in an .npz file.
_ALIASES = {"images": "inputs", "test_images": "test_inputs"}
# Prefix of the keys of columns: arrays with one value for each sample, to make clients from.
_COLUMN = "column_"
_UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, MemoryError)


@dataclass(frozen=True, eq=False)
class Samples:
    """A user's samples, as every form of data gives them: a dataset before labels are numbered.

    Labels are names or numbers, or None if there are only targets. `label_names` is None if the
    form does not name the labels. `features` are the names of the columns that make an input.
    `columns`, `owners` and `clients` are the same as in `Dataset`.
    """

    name: str
    inputs: Inputs
    labels: Array | None
    targets: Array | None = None
    label_names: Sequence[str] | None = None
    features: tuple[str, ...] = ()
    columns: Mapping[str, Array] = field(default_factory=dict)
    owners: Ints | None = None
    clients: tuple[ClientId, ...] = ()
    test: Samples | None = None

    def none(self) -> Samples:
        """Return samples of the same kind, but none of them."""
        labels, targets = (
            None if values is None else values[:0] for values in (self.labels, self.targets)
        )
        return replace(self, inputs=self.inputs.select([]), labels=labels, targets=targets)


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
    train = read_samples(inputs, labels, groups, name=name)
    test = None
    if (test_inputs is None) != (test_labels is None):
        raise BadInput("only one of test_inputs and test_labels is given; give both, or neither")
    if test_inputs is not None:
        test = read_samples(test_inputs, test_labels, test_groups, prefix="test_")
    read = read_columns(columns or {}, len(train.inputs))
    whole = replace(train, columns=read, label_names=label_names, test=test)
    return to_dataset(whole, holdout, rng)


def read_samples(
    inputs: Any, labels: Any, groups: Any = None, *, prefix: str = "", name: str = "arrays"
) -> Samples:
    """Read the arrays of one set of samples; messages name the arrays with `prefix`."""
    x, key = Inputs(as_inputs(f"{prefix}inputs", inputs)), f"{prefix}labels"
    y, targets = as_array(key, labels), None
    if groups is not None or (y.dtype.kind == "f" and y.size):
        if y.shape[:1] != x.shape[:1]:
            raise BadInput(
                f"{prefix}inputs have shape {x.shape} and {key} {y.shape}; give one target for "
                "each sample"
            )
        if y.dtype.kind not in "iufb":
            raise BadInput(f"{key} have type {y.dtype}; with groups, give numbers to predict")
        with np.errstate(over="ignore"):  # an overflow becomes inf, which Dataset refuses
            targets = np.asarray(y, np.int64 if y.dtype.kind in "iu" else np.float32)
        if groups is None:
            return Samples(name, x, None, targets)
        key, y = f"{prefix}groups", as_array(f"{prefix}groups", groups)
    y = _as_labels(key, y)
    if y.shape != x.shape[:1]:
        raise BadInput(
            f"{prefix}inputs have shape {x.shape} and {key} {y.shape}; they need (n, ...) and "
            "(n,), one for each sample"
        )
    return Samples(name, x, y, targets)


def to_dataset(samples: Samples, holdout: float, rng: np.random.Generator | None) -> Dataset:
    """Number the labels of samples, and hold out a test set if there is none.

    A client whose samples would all be held out keeps them.
    """
    if samples.test is None and rng is None:
        raise BadInput(
            "there are no test arrays; give them, or pass rng = a generator to hold out a test set"
        )
    test = samples.none() if samples.test is None else samples.test
    check_alike(samples, test, "the training set", "the test set")
    if samples.labels is None or test.labels is None:
        numbers = [np.zeros(len(part.inputs), np.int64) for part in (samples, test)]
        names: Sequence[str] = (NO_LABELS,)
    else:
        known = test.label_names if samples.label_names is None else samples.label_names
        numbers, names = number_labels([samples.labels, test.labels], known)
    whole = Dataset(
        samples.name,
        samples.inputs,
        numbers[0],
        test.inputs,
        numbers[1],
        tuple(names),
        targets=samples.targets,
        test_targets=test.targets,
        owners=samples.owners,
        clients=samples.clients,
        has_labels=samples.labels is not None,
        columns=samples.columns,
    )
    if samples.test is not None or rng is None:
        return whole
    kept, held = stratified_holdout(whole.labels, holdout, rng)
    owners = whole.owners
    if owners is not None:
        count = np.bincount(owners[kept][owners[kept] >= 0], minlength=len(whole.clients))
        returned = (owners[held] >= 0) & (count == 0)[owners[held]]
        kept, held = np.sort(np.concatenate([kept, held[returned]])), held[~returned]
    return whole.keep(kept, held=held)


def check_alike(one: Samples, other: Samples, first: str, second: str) -> None:
    """Refuse samples that differ in kind; messages call the two `first` and `second`."""
    for (own, is_own), (theirs, is_theirs), remedy in zip(
        _kinds(one), _kinds(other), _REMEDIES, strict=True
    ):
        if None not in (own, theirs) and own != theirs:
            raise BadInput(f"{second} has {is_theirs} and {first} has {is_own}; {remedy}")


def _kinds(samples: Samples) -> Iterator[tuple[Any, str]]:
    """Yield what samples of several clients, or of training and test, have in common.

    None agrees with everything.
    """
    features, inputs, targets = samples.features, samples.inputs, samples.targets
    yield features or None, f"the input columns {several(features, 10)}"
    shape, dtype = inputs.shape[1:], inputs.dtype
    yield (shape, dtype), f"inputs of shape {shape} and type {dtype}"
    names, labels = samples.label_names, samples.labels
    yield names and tuple(names), f"the label names {several(names or (), 10)}"
    yield labels is None, "no labels" if labels is None else "labels"
    is_text = None
    if labels is not None and labels.size and names is None:  # numbers are positions in names
        is_text = labels.dtype.kind == "U"
    yield is_text, "names as labels" if is_text else "numbers as labels"
    of = None if targets is None else targets.shape[1:]
    yield str(of), "no targets" if of is None else f"targets of shape {of}"


# What to do about a difference in each of the kinds.
_REMEDIES = (
    "name the same columns for all with inputs=[...]",
    "give all the same shape and type (only uint8 is divided by 255)",
    "give all the same names in the same order",
    "give all the same (labels of a float type are targets of a regression)",
    "give all names, or all numbers",
    "give all the same (labels of a float type are targets of a regression)",
)


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


def load_npz(path: Path, rng: np.random.Generator) -> Dataset:
    """Load a dataset from an .npz file of your own.

    The file has `inputs` and `labels`, and optionally `groups`, `test_inputs`, `test_labels`,
    `test_groups`, `label_names` and columns such as `column_hospital`. Inputs may also be called
    `images`. The arrays may be anything that `from_arrays` accepts. Loading never executes code
    from the file.
    """
    with error_context(path):
        arrays = _read_npz(Path(path))
        names = arrays.pop("label_names", None)
        columns = [key for key in arrays if key.startswith(_COLUMN)]
        return from_arrays(
            name=Path(path).stem,
            label_names=None if names is None else names.astype(str).ravel().tolist(),
            columns={key.removeprefix(_COLUMN): arrays.pop(key) for key in columns},
            rng=rng,
            **arrays,
        )


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


def number_labels(
    parts: Sequence[Array], given: Sequence[str] | None
) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the labels of all parts consistently, and return the names of the labels.

    >>> number_labels([np.array(["dog", "cat"]), np.array(["dog"])], None)
    ([array([1, 0]), array([1])], ('cat', 'dog'))
    >>> number_labels([np.array([0, 2])], None)
    ([array([0, 2])], ('0', '1', '2'))
    """
    texts = [part for part in parts if part.dtype.kind == "U"]
    # The arrays are not concatenated, because NumPy converts uint64 beside int64 to floats.
    numbers = [int(part.max()) for part in parts if part.size and part.dtype.kind != "U"]
    largest = max(numbers, default=-1)
    if largest >= (_MAX_LABELS if given is None else 2**63):
        raise BadInput(
            f"label {largest} is too large for a class; number the labels from 0 without gaps, or "
            "give names as labels"
        )
    if given is None:
        given = (
            np.unique(np.concatenate(texts)).tolist() if texts else [*map(str, range(largest + 1))]
        )
    names = tuple(map(str, given))
    number = {name: position for position, name in enumerate(names)}
    unknown = next((y for part in texts for y in part.tolist() if y not in number), None)
    if unknown is not None:
        raise BadInput(f"label {unknown!r} is not among label_names; {nearest(unknown, names)}")
    coded = [
        [number[y] for y in part.tolist()] if part.dtype.kind == "U" else part for part in parts
    ]
    return [np.array(part, np.int64) for part in coded], names


def _as_labels(key: str, array: Array) -> Array:
    # Data frames hold text as objects.
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        return array.astype(str)
    if array.size and array.dtype.kind not in "iubU":
        raise BadInput(
            f"{key} have type {array.dtype} (the first is {array.flat[0]!r}); "
            "give whole numbers from 0, or names"
        )
    return np.asarray(array)


def _read_npz(path: Path) -> dict[str, Any]:
    """Read the arrays of an .npz file by their keys, without aliases."""
    try:
        # Given a path, numpy.load would leave a broken archive open.
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{error.strerror}; give the path of an .npz file") from error
    with file:
        try:
            archive = np.load(file, allow_pickle=False)
        except _UNREADABLE:
            archive = None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadInput(
                "not an .npz file; write it with numpy.savez(path, inputs=..., labels=...)"
            )
        arrays: dict[str, Any] = {}
        for key in archive.files:
            name = _ALIASES.get(key, key)
            if name not in (*_REQUIRED, *_OPTIONAL) and not name.startswith(_COLUMN):
                raise BadInput(
                    f"unknown key {key!r}; {nearest(key, (*_REQUIRED, *_OPTIONAL, *_ALIASES))}"
                )
            if name in arrays:
                raise BadInput(f"key {key!r} means the same as another one; keep one of them")
            try:
                arrays[name] = archive[key]
            except _UNREADABLE as error:
                raise BadInput(
                    f"key {key!r} cannot be read ({error}); save plain arrays of numbers or text, "
                    "not objects"
                ) from error
    for key in _REQUIRED:
        if key not in arrays:
            found = ", ".join(arrays) or "no key at all"
            raise BadInput(f"key {key!r} is missing (found {found}); add it")
    return arrays
