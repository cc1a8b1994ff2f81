"""Brings arrays of many forms to those used inside: float32 or uint8 images, int64 labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.errors import BadInput, nearest

# Numbers beyond this are ids, not classes.
_MOST_LABELS = 65_536


def as_images(key: str, images: npt.ArrayLike) -> npt.NDArray[Any]:
    """Images as float32, but uint8 stays: a quarter of the memory, and 0..1 when computed with.

    >>> as_images("images", np.array([[0, 255]], dtype=np.uint8)).dtype
    dtype('uint8')
    >>> as_images("images", [[0, 255]]).dtype
    dtype('float32')
    """
    array = _as_array(key, images)
    if array.dtype.kind not in "iufb":
        raise BadInput(f"{key} are of type {array.dtype}; give an array of numbers")
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # too large becomes inf, which the dataset refuses
        return array.astype(np.float32)


def same_form(images: npt.ArrayLike, test_images: npt.ArrayLike) -> None:
    """Refuse what would be rescaled in one of the two and not in the other."""
    first, second = np.asarray(images).dtype, np.asarray(test_images).dtype
    if (first == np.uint8) != (second == np.uint8):
        raise BadInput(
            f"images are {first} and test_images {second}, and only uint8 is divided by 255; "
            "give both in one type"
        )


def encode_labels(
    parts: Sequence[npt.ArrayLike], label_names: Sequence[str] | None
) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the labels of all parts alike, and name them.

    >>> encode_labels([["dog", "cat"], ["dog"]], None)
    ([array([1, 0]), array([1])], ('cat', 'dog'))
    >>> encode_labels([[0, 2]], None)
    ([array([0, 2])], ('0', '1', '2'))
    """
    arrays = [_as_labels(part) for part in parts]
    named = {array.dtype.kind for array in arrays if array.size} == {"U"}
    if not named and any(array.dtype.kind == "U" for array in arrays if array.size):
        raise BadInput("labels are names in one array and numbers in the other; use one of the two")
    names = _names(arrays, label_names, named)
    if named:
        return [_numbers(array, names) for array in arrays], names
    return [array.astype(np.int64) for array in arrays], names


def _as_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    array = _as_array("labels", labels)
    # Tables hand out text as objects.
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        return array.astype(str)
    if array.size and array.dtype.kind not in "iubU":
        raise BadInput(
            f"labels are of type {array.dtype} (the first is {array.flat[0]!r}); "
            "give whole numbers from 0, or names"
        )
    if array.dtype.kind == "u" and _largest([array]) > np.iinfo(np.int64).max:
        _refuse_large(_largest([array]))  # as int64 it would become negative
    return array


def _as_array(key: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise BadInput(f"{key} are not all of one shape; give an array, not ragged lists") from None


def _largest(arrays: Sequence[npt.NDArray[Any]]) -> int:
    """The largest number of all arrays, or -1 if they are empty.

    Each array is asked for its own: NumPy would make floats of uint64 beside int64, and no unsigned
    type can be compared with -1.
    """
    return max((int(array.max()) for array in arrays if array.size), default=-1)


def _refuse_large(label: int) -> NoReturn:
    raise BadInput(f"label {label} is too large for a class; number the labels from 0")


def _names(
    arrays: list[npt.NDArray[Any]], given: Sequence[str] | None, named: bool
) -> tuple[str, ...]:
    if given is not None:
        return tuple(str(name) for name in given)
    if named:
        values = np.concatenate([array.ravel() for array in arrays if array.size])
        return tuple(str(name) for name in np.unique(values))
    largest = _largest(arrays)
    if largest >= _MOST_LABELS:
        _refuse_large(largest)
    return tuple(str(number) for number in range(largest + 1))


def _numbers(labels: npt.NDArray[Any], names: tuple[str, ...]) -> Ints:
    number = {name: position for position, name in enumerate(names)}
    unknown = next((str(label) for label in labels.flat if str(label) not in number), None)
    if unknown is not None:
        raise BadInput(f"label {unknown!r} is not among label_names; {nearest(unknown, names)}")
    coded = np.array([number[str(label)] for label in labels.flat], dtype=np.int64)
    return coded.reshape(labels.shape)
