"""Makes a dataset from a user's own arrays, or from an .npz file of them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset, Images, check_samples
from fedraw.data.splits import stratified_holdout
from fedraw.errors import BadInput, nearest

# A larger number is an identifier, not a class.
_MAX_LABELS = 65_536
_NEEDED = ("images", "labels")
_KNOWN = (*_NEEDED, "test_images", "test_labels", "label_names")
_UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, MemoryError)

AnyArray = npt.NDArray[Any]


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    name: str = "arrays",
    test_images: npt.ArrayLike | None = None,
    test_labels: npt.ArrayLike | None = None,
    label_names: Sequence[str] | None = None,
    holdout: float = 0.2,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """Make a dataset from your own arrays.

    Images of type uint8 stand for 0..1 in steps of 1/255. All other types keep their values, as
    float32. Labels are whole numbers from 0, or names, which are numbered in the order of
    `label_names` (default: alphabetical). Without test arrays, a share `holdout` of each label,
    drawn with `rng`, becomes the test set.

    >>> rng = np.random.default_rng(0)
    >>> data = from_arrays(np.eye(4), ["b", "a", "b", "a"], holdout=0.5, rng=rng)
    >>> data.label_names, data.labels.tolist(), data.test_labels.tolist()
    (('a', 'b'), [1, 0], [1, 0])
    """
    x = as_images("images", images)
    if test_images is not None and test_labels is not None:
        test_x = as_images("test_images", test_images)
        _check_same_scale(images, test_images)
        (y, test_y), names = encode_labels([labels, test_labels], label_names)
        return Dataset(name, Images(x), y, Images(test_x), test_y, names)
    if test_images is not None or test_labels is not None:
        raise BadInput("only one of test_images and test_labels is given; give both, or neither")
    if rng is None:
        raise BadInput(
            "there are no test arrays; give them, or pass rng = a generator to hold out a test set"
        )
    (y,), names = encode_labels([labels], label_names)
    everything = Images(x)
    check_samples("", everything, y, len(names))
    kept, held = stratified_holdout(y, holdout, rng)
    train, test = everything.select(kept), everything.select(held)
    return Dataset(name, train, y[kept], test, y[held], names)


def load_npz(path: Path, rng: np.random.Generator) -> Dataset:
    """Load a dataset from an .npz file of your own.

    The file has `images` and `labels`, and optionally `test_images`, `test_labels` and
    `label_names`. The arrays may be anything that `from_arrays` accepts. Nothing in the file is
    executed.
    """
    arrays = _read_npz(Path(path))
    names = arrays.get("label_names")
    try:
        return from_arrays(
            arrays["images"],
            arrays["labels"],
            name=Path(path).stem,
            test_images=arrays.get("test_images"),
            test_labels=arrays.get("test_labels"),
            label_names=None if names is None else names.astype(str).ravel().tolist(),
            rng=rng,
        )
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def as_images(key: str, images: npt.ArrayLike) -> AnyArray:
    """Convert images to float32, but leave uint8 as it is: it takes a quarter of the memory.

    >>> as_images("images", np.array([[0, 255]], dtype=np.uint8)).dtype
    dtype('uint8')
    >>> as_images("images", [[0, 255]]).dtype
    dtype('float32')
    """
    array = _as_array(key, images)
    if array.dtype.kind not in "iufb":
        raise BadInput(f"{key} have type {array.dtype}; give an array of numbers")
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # an overflow becomes inf, which Dataset refuses
        return array.astype(np.float32)


def encode_labels(
    parts: Sequence[npt.ArrayLike], label_names: Sequence[str] | None
) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the labels of all parts consistently, and return the names of the labels.

    >>> encode_labels([["dog", "cat"], ["dog"]], None)
    ([array([1, 0]), array([1])], ('cat', 'dog'))
    >>> encode_labels([[0, 2]], None)
    ([array([0, 2])], ('0', '1', '2'))
    """
    arrays = [_as_labels(part) for part in parts]
    are_names = {array.dtype.kind for array in arrays if array.size} == {"U"}
    if not are_names and any(array.dtype.kind == "U" for array in arrays if array.size):
        raise BadInput("labels are names in one array and numbers in the other; use one of the two")
    names = _label_names(arrays, label_names, are_names)
    if are_names:
        return [_numbers(array, names) for array in arrays], names
    return [array.astype(np.int64) for array in arrays], names


def _check_same_scale(images: npt.ArrayLike, test_images: npt.ArrayLike) -> None:
    """Refuse uint8 in only one of the two: it would be rescaled and the other would not."""
    first, second = np.asarray(images).dtype, np.asarray(test_images).dtype
    if (first == np.uint8) != (second == np.uint8):
        raise BadInput(
            f"images are {first} and test_images are {second}, but only uint8 is divided by 255; "
            "give both the same type"
        )


def _as_labels(labels: npt.ArrayLike) -> AnyArray:
    array = _as_array("labels", labels)
    # Data frames hold text as objects.
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        return array.astype(str)
    if array.size and array.dtype.kind not in "iubU":
        raise BadInput(
            f"labels have type {array.dtype} (the first is {array.flat[0]!r}); "
            "give whole numbers from 0, or names"
        )
    if array.dtype.kind == "u" and _largest([array]) > np.iinfo(np.int64).max:
        _refuse_large(_largest([array]))  # it would become negative as int64
    return array


def _as_array(key: str, values: npt.ArrayLike) -> AnyArray:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise BadInput(
            f"{key} do not all have the same shape; give an array, not ragged lists"
        ) from None


def _largest(arrays: Sequence[AnyArray]) -> int:
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
    arrays: list[AnyArray], given: Sequence[str] | None, are_names: bool
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


def _numbers(labels: AnyArray, names: tuple[str, ...]) -> Ints:
    number = {name: position for position, name in enumerate(names)}
    unknown = next((str(label) for label in labels.flat if str(label) not in number), None)
    if unknown is not None:
        raise BadInput(f"label {unknown!r} is not among label_names; {nearest(unknown, names)}")
    coded = np.array([number[str(label)] for label in labels.flat], dtype=np.int64)
    return coded.reshape(labels.shape)


def _read_npz(path: Path) -> dict[str, AnyArray]:
    try:
        # Opened here, because numpy.load leaves a broken archive open.
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; give the path of an .npz file") from error
    with file:
        archive = _open_archive(path, file)
        _check_keys(path, archive.files)
        return {key: _read_array(path, archive, key) for key in archive.files}


def _open_archive(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except _UNREADABLE:
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise BadInput(
            f"{path}: not an .npz file; write it with numpy.savez(path, images=..., labels=...)"
        )
    return archive


def _check_keys(path: Path, keys: list[str]) -> None:
    for key in keys:
        if key not in _KNOWN:
            raise BadInput(f"{path}: unknown key {key!r}; {nearest(key, _KNOWN)}")
    for key in _NEEDED:
        if key not in keys:
            found = ", ".join(keys) or "no key at all"
            raise BadInput(f"{path}: key {key!r} is missing (found {found}); add it")


def _read_array(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> AnyArray:
    try:
        array: AnyArray = archive[key]
    except _UNREADABLE as error:
        raise BadInput(
            f"{path}: key {key!r} cannot be read ({error}); save plain arrays of numbers or text, "
            "not objects"
        ) from error
    return array
