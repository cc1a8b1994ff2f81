"""Labelled samples with a global test set, and their inputs, in memory or in a file."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.types import ClientId, Ints
from fedraw.errors import BadInput, nearest

Array = npt.NDArray[Any]
_CHUNK = 1024
_BYTE, _WHOLE, _REAL = np.dtype(np.uint8), np.dtype(np.int64), np.dtype(np.float32)


def model_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type to which inputs or targets of a stored type are converted for a model.

    Bytes stay bytes (0 to 255, which become 0 to 1 when a network reads them), whole numbers such
    as token ids become int64, and all other numbers become float32.

    >>> [str(model_dtype(np.dtype(t))) for t in ("u1", "i4", "f8", "?")]
    ['uint8', 'int64', 'float32', 'float32']
    """
    if stored == _BYTE:
        return _BYTE
    return _WHOLE if stored.kind in "iu" else _REAL


class FileLocation(NamedTuple):
    """The location of an array in a file, from which another process maps the same bytes."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, array: Array) -> FileLocation | None:
        """Return the location of a memory-mapped array; None for any other array.

        A view of a map has a location if it is one block of the file, such as a slice of rows.
        """
        if not isinstance(array, np.memmap) or not array.flags.c_contiguous:
            return None
        whole = array._mmap  # type: ignore[attr-defined]
        if whole is None or array.filename is None or array.mode == "c":
            return None
        in_map = array.ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
        before_map = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        return cls(str(array.filename), array.dtype.str, array.shape, before_map + in_map)

    def open(self) -> Array:
        """Map the array again."""
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)


class Inputs:
    """Rows of an array of shape (n, ...), read when they are needed, in the type of `model_dtype`.

    A selection copies nothing. Processes share inputs in a memory-mapped file: pickling sends only
    the location in the file.

    >>> inputs = Inputs(np.arange(8, dtype=np.uint8).reshape(4, 2)).select([3, 1])
    >>> len(inputs), inputs.shape, inputs[:1].tolist(), inputs.select([1]).take([0]).tolist()
    (2, (2, 2), [[6, 7]], [[2, 3]])
    """

    def __init__(
        self,
        values: Array,
        rows: npt.ArrayLike | None = None,
        sha256: str | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        """Select `rows` of `values` (default: all).

        `sha256` is the fingerprint of the whole array, if it is known already. `dtype` is the type
        in which inputs are returned (default: that of `model_dtype`).
        """
        if not values.ndim:
            raise BadInput(
                "inputs have shape (), a single number; give (n, ...), one row per sample"
            )
        self.values = values
        self.rows: Ints | None = None if rows is None else np.asarray(rows, np.int64)
        self.dtype = dtype or model_dtype(values.dtype)  # uint8, int64 or float32
        self._sha256 = sha256
        self._location = FileLocation.of(values)

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected inputs, with their number first."""
        return (len(self), *self.values.shape[1:])

    @property
    def is_mapped(self) -> bool:
        """Whether the values are in a memory-mapped file."""
        return self._location is not None

    def select(self, rows: npt.ArrayLike) -> Inputs:
        """Select rows of this selection, without copying."""
        wanted = np.asarray(rows, np.int64)
        chosen = wanted if self.rows is None else self.rows[wanted]
        return Inputs(self.values, chosen, self._sha256, self.dtype)

    def everything(self) -> Inputs:
        """Return all rows of the array from which these inputs are selected."""
        return Inputs(self.values, None, self._sha256, self.dtype)

    def as_floats(self) -> Inputs:
        """Return the same inputs; whole numbers are read as float32."""
        dtype = _REAL if self.dtype == _WHOLE else self.dtype
        return Inputs(self.values, self.rows, self._sha256, dtype)

    def same_rows_of(self, others: Inputs) -> Inputs:
        """Select the same rows of another array, such as features of the same samples."""
        return others if self.rows is None else others.select(self.rows)

    def take(self, positions: npt.ArrayLike) -> Array:
        """Read the inputs at these positions of the selection."""
        return self.select(positions)[:]

    def __getitem__(self, part: slice) -> Array:
        found = self.values[part if self.rows is None else self.rows[part]]
        with np.errstate(over="ignore"):  # an overflow becomes inf, which Dataset refuses
            return np.asarray(found, self.dtype)  # a plain array, even if it is memory-mapped

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self[:], dtype=dtype, copy=copy)

    def sha256(self) -> str:
        """Return a fingerprint of the selected inputs, which does not depend on their file."""
        digest = hashlib.sha256(f"{self.shape}{self.dtype}".encode())
        if self._sha256 is not None:
            digest.update(self._sha256.encode())
            digest.update(b"" if self.rows is None else self.rows.tobytes())
        elif self.values.size:
            for start in range(0, len(self), _CHUNK):
                digest.update(np.ascontiguousarray(self[start : start + _CHUNK]).data.cast("B"))
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Callable[..., Inputs], tuple[Any, ...]]:
        options = self.rows, self._sha256, self.dtype
        if self._location is not None:
            return _map_inputs, (self._location, *options)
        return Inputs, (self.values, *options)


def _map_inputs(location: FileLocation, *options: Any) -> Inputs:
    return Inputs(location.open(), *options)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples to distribute over clients, and a test set that belongs to none of them.

    Everything is checked on construction. `fedraw.from_arrays` makes one from your own arrays.

    Attributes:
        name: The name of the dataset in tables and messages.
        inputs: The inputs of the training samples: bytes, whole numbers (token ids) or floats.
        labels: The label of each training sample, as a number from 0. If the model predicts
            `targets`, these are the groups of the samples.
        test_inputs: The inputs of the test samples.
        test_labels: The labels of the test samples.
        label_names: The names of the labels, in the order of their numbers.
        notes: Remarks that every result on this dataset repeats, such as a difference from the
            official release.
        targets: The values to predict, if these are not the labels: floats for regression.
        test_targets: The targets of the test samples.
        owners: The client that each training sample belongs to, as a position in `clients`; -1 if
            it belongs to none. With None, a partition divides the samples.
        clients: The names of the clients, if `owners` is given.
        has_labels: False if the samples have neither labels nor groups; all are then one group.
        columns: Named arrays with one value for each training sample, such as the writer of a
            letter. A partition can make a client of each value.
        map_digest: The digest of the feature map whose features the inputs are; None for others.
        origin: The fingerprint of the samples before a feature map that belongs to the method, and
            not to the data; None if there is no such map.

    >>> two = Inputs(np.zeros((2, 1, 8, 8), dtype=np.float32))
    >>> test = two.select([0])
    >>> data = Dataset("toy", two, np.array([0, 1]), test, np.array([1]), ("cat", "dog"))
    >>> data.classes, data.input_shape, data.label_indices(["dog", 0])
    (2, (1, 8, 8), (1, 0))

    """

    name: str
    inputs: Inputs
    labels: Ints
    test_inputs: Inputs
    test_labels: Ints
    label_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    targets: Array | None = None
    test_targets: Array | None = None
    owners: Ints | None = None
    clients: tuple[ClientId, ...] = ()
    has_labels: bool = True
    columns: Mapping[str, Array] = field(default_factory=dict)
    map_digest: str | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        if len(set(self.label_names)) < len(self.label_names):
            twice = next(n for n in self.label_names if self.label_names.count(n) > 1)
            raise BadInput(f"label_names lists {twice!r} twice; make the names unique")
        if not len(self.inputs):
            raise BadInput(f"dataset {self.name!r} has no training samples; give at least one")
        inputs, test = self.inputs, self.test_inputs
        check_samples("", inputs, self.labels, self.targets, self.classes)
        check_samples("test_", test, self.test_labels, self.test_targets, self.classes)
        if (test.shape[1:], test.dtype) != (inputs.shape[1:], inputs.dtype):
            raise BadInput(
                f"test_inputs have shape {test.shape[1:]} and type {test.dtype}, and inputs have "
                f"shape {inputs.shape[1:]} and type {inputs.dtype}; give both the same shape and "
                "type"
            )
        if (self.targets is None) != (self.test_targets is None):
            raise BadInput("only one of targets and test_targets is given; give both, or neither")

    def __repr__(self) -> str:
        labels = ", ".join(self.label_names[:10]) + (", …" if self.classes > 10 else "")
        return (
            f"<Dataset {self.name}: {len(self.inputs):,} samples of shape {self.input_shape}, "
            f"{len(self.test_inputs):,} for testing; labels {labels}>"
        )

    @property
    def classes(self) -> int:
        """Number of labels, whether or not all of them have samples."""
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.inputs.shape[1:]

    @property
    def has_inputs(self) -> bool:
        """False for a dataset of labels only, which is enough for a run without training."""
        return 0 not in self.input_shape

    def label_indices(self, names_or_numbers: Sequence[int | str]) -> tuple[int, ...]:
        """Return the numbers of labels that are given by name or by number."""
        return tuple(self._label_index(label) for label in names_or_numbers)

    def keep(
        self, rows: Ints | None = None, test_rows: Ints | None = None, held: Ints | None = None
    ) -> Dataset:
        """Return these training and test samples only (default: all).

        With `held`, these training samples become the test set.

        >>> two = Inputs(np.zeros((2, 3), np.float32))
        >>> data = Dataset("toy", two, np.array([0, 1]), two, np.array([0, 1]), ("cat", "dog"))
        >>> data.keep(np.array([1])).labels
        array([1])
        """
        kept: dict[str, Any] = {}
        if rows is not None:
            for key in ("inputs", "labels", "targets", "owners"):
                kept[key] = _rows(getattr(self, key), rows)
            kept["columns"] = {column: values[rows] for column, values in self.columns.items()}
        if test_rows is not None or held is not None:
            source, chosen = ("test_", test_rows) if held is None else ("", held)
            for key in ("inputs", "labels", "targets"):
                kept[f"test_{key}"] = _rows(getattr(self, f"{source}{key}"), chosen)
        return replace(self, **kept)

    def sha256(self) -> str:
        """Return a fingerprint of all samples, equal for runs on the same data."""
        digest = hashlib.sha256()
        for inputs, labels, targets in (
            (self.inputs, self.labels, self.targets),
            (self.test_inputs, self.test_labels, self.test_targets),
        ):
            digest.update(inputs.sha256().encode())
            digest.update(np.ascontiguousarray(labels).tobytes())
            if targets is not None:
                digest.update(np.ascontiguousarray(targets).tobytes())
        return digest.hexdigest()

    def _label_index(self, label: int | str) -> int:
        if isinstance(label, str) and label in self.label_names:
            return self.label_names.index(label)
        if isinstance(label, str):
            raise BadInput(
                f"dataset {self.name!r} has no label {label!r}; {nearest(label, self.label_names)}"
            )
        if not 0 <= label < self.classes:
            raise BadInput(
                f"dataset {self.name!r} has no label number {label}; its labels are 0 to "
                f"{self.classes - 1}"
            )
        return int(label)


def _rows(values: Any, rows: Any) -> Any:
    if values is None:
        return None
    return values.select(rows) if isinstance(values, Inputs) else values[rows]


def count_labels(labels: Ints, names: Sequence[str]) -> dict[str, int]:
    """Count the samples of each label.

    >>> count_labels(np.array([1, 1]), ["cat", "dog"])
    {'cat': 0, 'dog': 2}
    """
    counts = np.bincount(labels, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def limit_per_label(
    dataset: Dataset, per_label: int | None, test_per_label: int | None, rng: np.random.Generator
) -> Dataset:
    """Keep at most `per_label` training and `test_per_label` test samples of each label.

    The samples are drawn at random. None keeps all samples.
    """
    for key, most in (("per_label", per_label), ("test_per_label", test_per_label)):
        if most is None:
            continue
        if most < 1:
            raise BadInput(f"data.{key} = {most} keeps no images; give 1 or more")
        is_test = key.startswith("test")
        labels = dataset.test_labels if is_test else dataset.labels
        kept = _draw_at_most(np.full(dataset.classes, most), labels, rng)
        dataset = dataset.keep(test_rows=kept) if is_test else dataset.keep(kept)
        part = "test" if is_test else "training"
        dataset = _with_note(dataset, f"at most {most:,} {part} images of each label")
    return dataset


def long_tail(dataset: Dataset, imbalance: float, rng: np.random.Generator) -> Dataset:
    """Keep exponentially fewer training samples of later labels, as in CIFAR-10-LT.

    Label k of C labels keeps n · (1 / imbalance)^(k / (C - 1)) samples, where n is the size of the
    largest label and `imbalance` is at least 1. A label with fewer samples keeps all of them. The
    test set does not change.

    Cui, Jia, Lin, Song, Belongie: Class-balanced loss based on effective number of samples. CVPR
    2019.

    >>> inputs, labels = Inputs(np.zeros((24, 1), np.float32)), np.repeat([0, 1, 2], 8)
    >>> data = Dataset("toy", inputs, labels, inputs.select([0]), labels[:1], ("a", "b", "c"))
    >>> np.bincount(long_tail(data, 4.0, np.random.default_rng(0)).labels)
    array([8, 4, 2])
    """
    sizes = np.bincount(dataset.labels, minlength=dataset.classes)
    exponent = np.arange(dataset.classes) / max(1, dataset.classes - 1)
    limits = np.maximum(1, np.rint(sizes.max() * imbalance**-exponent).astype(np.int64))
    changed = dataset.keep(_draw_at_most(limits, dataset.labels, rng))
    return _with_note(changed, f"long tail, the largest label {imbalance:g} times the smallest")


def downscale(dataset: Dataset, size: int) -> Dataset:
    """Shrink the images to size x size pixels, each the mean of a block of the original pixels."""
    *_, height, width = 0, 0, *dataset.input_shape
    if height != width or not 1 <= size <= height or height % size:
        sizes = [str(side) for side in range(1, height) if height % side == 0]
        raise BadInput(
            f"size = {size} does not divide the {height} x {width} pixels of dataset "
            f"{dataset.name!r}; give one of {', '.join(sizes)}"
        )
    if size == height:
        return dataset
    images, test = (_block_means(part, size) for part in (dataset.inputs, dataset.test_inputs))
    changed = replace(dataset, inputs=images, test_inputs=test)
    return _with_note(changed, f"images of {size}x{size}, official {height}x{width}")


def check_samples(
    prefix: str, inputs: Inputs, labels: Ints, targets: Array | None, classes: int
) -> None:
    """Raise BadInput if the arrays do not fit together; messages name them with `prefix`."""
    if inputs.values.dtype.kind not in "biuf" or labels.dtype != np.int64:
        raise BadInput(
            f"{prefix}inputs are {inputs.values.dtype} and {prefix}labels are {labels.dtype}, not "
            "numbers and int64; fedraw.from_arrays converts them"
        )
    if len(inputs.shape) < 2 or labels.shape != inputs.shape[:1]:
        raise BadInput(
            f"{prefix}inputs have shape {inputs.shape} and {prefix}labels {labels.shape}; "
            "they need (n, ...) and (n,), one label for each sample"
        )
    check_finite(f"{prefix}inputs", inputs)
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{prefix}labels[{row}] = {labels[row]} is outside 0 to {classes - 1}, the numbers of "
            f"{classes} label names; number labels from 0 without gaps, or give names as "
            "labels; targets of a regression have a float type"
        )
    if targets is None:
        return
    if targets.dtype not in (_REAL, _WHOLE) or targets.shape[:1] != labels.shape:
        raise BadInput(
            f"{prefix}targets are {targets.dtype} of shape {targets.shape} for {len(labels)} "
            "samples; give float32 or int64, one row for each sample"
        )
    check_finite(f"{prefix}targets", Inputs(targets))


def check_finite(name: str, inputs: Inputs) -> None:
    """Raise BadInput if a value is NaN or infinite; `name` is the name of the array."""
    if inputs.dtype != _REAL or not inputs.values.size:
        return
    # A mapped file may be larger than the memory, so it is checked in chunks.
    step = _CHUNK if inputs.is_mapped else max(1, len(inputs))
    for start in range(0, len(inputs), step):
        values = inputs[start : start + step]
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not np.all(finite):
            raise BadInput(
                f"{name}[{start + np.argmin(finite)}] has a value that is not a finite number; "
                "replace it or leave the sample out"
            )


def _draw_at_most(limits: Ints, labels: Ints, rng: np.random.Generator) -> Ints:
    """Draw up to `limits[label]` samples of each label, and return their sorted positions."""
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    starts = np.searchsorted(labels[by_label], labels[by_label])
    rank = np.arange(len(labels)) - starts
    return np.sort(by_label[rank < limits[labels[by_label]]])


def _with_note(dataset: Dataset, note: str) -> Dataset:
    return replace(dataset, notes=(*dataset.notes, f"{dataset.name}: {note}"))


def _block_means(images: Inputs, size: int) -> Inputs:
    pixels = images[:]
    *front, height, _ = pixels.shape
    block = height // size
    means = pixels.reshape(*front, size, block, size, block).mean(axis=(-3, -1), dtype=np.float32)
    rounded = np.rint(means) if pixels.dtype == np.uint8 else means
    return Inputs(rounded.astype(pixels.dtype))
