"""The parts of a message that every engine shares: scalars, label counts, the model's tensors.

An engine turns a site's bytes into Python values. These functions check the values before use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.admission import MOST_LABELS
from fedraw.server.tasks import Failure, Reply

# The most bytes of a reply apart from the model, such as names and label counts.
LARGEST_REST = 1 << 20
# The most characters of a site's error message. The end is kept, because a traceback ends with the
# exception.
LONGEST_REASON = 300
# The suffixes of torch's names for batch-norm statistics.
STATISTICS = ("running_mean", "running_var")

# The type and shape of a tensor.
TensorType = tuple[np.dtype[Any], tuple[int, ...]]


def reply_or_failure(read: Callable[[], Reply]) -> Reply:
    """Return the reply that `read` returns; an error becomes a Failure, so no site ends a server.

    >>> reply_or_failure(lambda: [][1]).reason
    'unreadable reply: IndexError list index out of range'
    """
    try:
        return read()
    except RefusedUpdate as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__} {error!s:.200}"
    return Failure(f"unreadable reply: {reason}", malformed=True)


class Fields:
    """The scalars of a message, each checked when it is read."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record

    def text(self, name: str) -> str:
        """Return a string."""
        return str(self._get(name, str, "a text"))

    def whole(self, name: str) -> int:
        """Return an integer."""
        return int(self._get(name, int, "a whole number"))

    def number(self, name: str) -> float:
        """Return a number."""
        return float(self._get(name, (int, float), "a number"))

    def boolean(self, name: str) -> bool:
        """Return a boolean."""
        return bool(self._get(name, bool, "true or false"))

    def __contains__(self, name: str) -> bool:
        return name in self._record

    def _get(self, name: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        if name not in self._record:
            raise RefusedUpdate(f"{name} is missing")
        value = self._record[name]
        # In Python a boolean is an integer; here it is not.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not {wanted}")
        return value


def plain_counts(counts: Mapping[Any, Any], what: str) -> dict[str, int]:
    """Return counts by label as a site sends them: labels as strings, counts as Python integers.

    >>> plain_counts({3: 2, "cat": 1}, "label_counts")
    {'3': 2, 'cat': 1}
    """
    if not isinstance(counts, Mapping):
        raise BadInput(f"{what} is {type(counts).__name__}, not a mapping from labels to counts")
    plain: dict[str, int] = {}
    for label, count in counts.items():
        if str(label) in plain:
            raise BadInput(
                f"{what} has label {str(label)!r} twice, as a number and as a text; use one type"
            )
        try:
            plain[str(label)] = index(count)
        except TypeError:
            raise BadInput(
                f"{what} has {count!r} for label {label!r}, not a whole number"
            ) from None
    return plain


def check_count_types(counts: Mapping[Any, Any], name: str) -> dict[str, int]:
    """Return received counts after checking their types; the server checks their values."""
    if len(counts) > MOST_LABELS:
        raise RefusedUpdate(f"record {name!r} has {len(counts)} labels; the limit is {MOST_LABELS}")
    for label, count in counts.items():
        if not isinstance(label, str):
            raise RefusedUpdate(f"{name} has the label {label!r:.60}, which is not a text")
        if isinstance(count, bool) or not isinstance(count, int):
            raise RefusedUpdate(
                f"{name} of label {label!r:.60} is {count!r:.60}, not a whole number"
            )
    return dict(counts)


def model_layout(
    tensors: Mapping[str, TensorType],
    statistics: Collection[str] | None = None,
) -> Layout:
    """Return the layout of a model's float tensors, given the type and shape of each tensor.

    `statistics` names the batch-norm statistics; by default, running means and variances.
    """
    for name, (dtype, _) in tensors.items():
        check_dtype(name, dtype)
    floats = {name: shape for name, (dtype, shape) in tensors.items() if dtype.kind == "f"}
    if not floats:
        raise BadInput("the model has no float tensor, so there is nothing to train")
    for name in statistics or ():
        if name not in floats:
            raise BadInput(f"statistics has {name!r}, which is not a float tensor of the model")
    if statistics is None:
        statistics = [name for name in floats if name.endswith(STATISTICS)]
    averaged = [(name, shape) for name, shape in floats.items() if name in statistics]
    return Layout.of([item for item in floats.items() if item[0] not in statistics], averaged)


def empty_vector(size: int) -> Vector:
    """Return a vector of so many numbers, whatever they are."""
    return np.empty(size, np.float32)


def read_tensors(
    tensors: Mapping[str, Any],
    layout: Layout,
    known: Container[str],
    numbers: Callable[[str, Any], npt.NDArray[Any]],
    empty: Callable[[int], Vector] = empty_vector,
) -> Vector:
    """Return the tensors of a reply as one vector; integer tensors are ignored and may be missing.

    `known` has the names of all tensors of the model. `numbers` checks the engine's tensor with a
    name and returns it as an array. `empty` returns the vector to fill.

    >>> layout = Layout.of([("w", (2,)), ("b", (1,))])
    >>> read_tensors({"b": [3], "w": [1, 2]}, layout, {"w", "b"}, lambda name, own: np.array(own))
    array([1., 2., 3.], dtype=float32)
    """
    for name in tensors:
        if name not in known:
            raise RefusedUpdate(f"tensor {name!r:.200} is not part of the model")
    vector = empty(layout.size)
    # A double beyond the range of float32 becomes infinite, and is refused later.
    with np.errstate(over="ignore"):
        for segment in layout.segments:
            tensor = tensors.get(segment.name)
            if tensor is None:
                raise RefusedUpdate(f"tensor {segment.name!r} is missing")
            place = vector[segment.slice].reshape(segment.shape)
            np.copyto(place, numbers(segment.name, tensor))
    return vector


def check_tensor_type(name: str, found: TensorType, expected: TensorType) -> None:
    """Refuse a tensor of another type or shape than the model's; the byte order may differ.

    >>> check_tensor_type("w", (np.dtype("f4"), (2,)), (np.dtype("f4"), (3,)))
    Traceback (most recent call last):
    fedraw.errors.RefusedUpdate: tensor 'w' is float32 of shape (2,), but the model's is float32 \
of shape (3,)
    """
    if (found[0].newbyteorder("="), found[1]) != expected:
        own, wanted = (f"{dtype.name} of shape {shape}" for dtype, shape in (found, expected))
        raise RefusedUpdate(f"tensor {name!r} is {own}, but the model's is {wanted}")


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse a tensor whose type is neither a float nor an integer of at most 64 bits."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise BadInput(
            f"tensor {name!r} is {dtype.name}; convert it to float16, float32, float64 or integers"
        )


def as_array(name: str, tensor: Any) -> npt.NDArray[Any]:
    """Return a user's tensor, of torch or NumPy, as an array of a supported type."""
    try:
        array = np.asarray(tensor.detach().cpu() if hasattr(tensor, "detach") else tensor)
    except TypeError as error:  # torch's bfloat16
        raise BadInput(f"tensor {name!r}: {error}; convert it with .float()") from None
    check_dtype(name, array.dtype)
    return array
