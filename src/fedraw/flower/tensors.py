"""Converts between Flower's ArrayRecord and one flat float32 vector.

Flower sends each tensor as the bytes of a .npy file. Reading a tensor checks the header and copies
the numbers into the vector. Writing a tensor appends the numbers to a header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from fedraw.core.aggregation import SpareMemory
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.messages import (
    TensorType,
    as_array,
    check_tensor_type,
    model_layout,
    read_tensors,
)
from fedraw.strategies.protocol import Payload

FLOAT32: np.dtype[Any] = np.dtype(np.float32)
# Flower's name for its only serialisation, the bytes of a .npy file.
NPY = "numpy.ndarray"


@dataclass(frozen=True, eq=False)
class TensorTemplate:
    """The tensors of a model in the user's order, and the position of each in the vector.

    Integer tensors (torch's num_batches_tracked) cannot be averaged. They are stored and sent
    unchanged, so that a strict load_state_dict finds every key. Half and double precision become
    single precision in the vector, and `write` converts them back.

    >>> model = record_of({"w": np.ones((2, 2), np.float32), "n": np.array(7)})
    >>> template = TensorTemplate.of(model)
    >>> template.read(model)
    array([1., 1., 1., 1.], dtype=float32)
    >>> zeros = template.write(np.zeros(4, np.float32))
    >>> zeros["w"].numpy().tolist(), zeros["n"].numpy().tolist()
    ([[0.0, 0.0], [0.0, 0.0]], 7)
    """

    layout: Layout
    names: tuple[str, ...]
    headers: Mapping[str, Header]  # of the tensors in the vector
    constants: Mapping[str, Array]  # the integer tensors
    dtype: np.dtype[Any] = FLOAT32  # of the vector
    _spare: SpareMemory = field(init=False, default_factory=SpareMemory, repr=False, compare=False)

    @classmethod
    def of(cls, record: ArrayRecord, statistics: Collection[str] | None = None) -> TensorTemplate:
        """Return the template of a model; by default running means and variances are statistics."""
        found = {name: _header_of(name, tensor) for name, tensor in record.items()}
        layout = model_layout({n: header.tensor_type for n, header in found.items()}, statistics)
        floats = {name: header for name, header in found.items() if header.dtype.kind == "f"}
        headers = {name: Header.of(h.dtype, h.shape) for name, h in floats.items()}
        constants = {name: record[name] for name in found if name not in floats}
        return cls(layout, tuple(found), headers, constants)

    @classmethod
    def of_payload(cls, payload: Payload, model: Layout) -> TensorTemplate:
        """Return the template of what clients send in place of this model."""
        layout, dtype = payload.layout(model), payload.dtype
        headers = {own.name: Header.of(dtype, own.shape) for own in layout.segments}
        return cls(layout, tuple(headers), headers, {}, dtype)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the model in a message."""
        headers = self.headers.values()
        floats = sum(len(h.text) + math.prod(h.shape) * h.dtype.itemsize for h in headers)
        return floats + sum(len(tensor.data) for tensor in self.constants.values())

    def read(self, record: ArrayRecord) -> Vector:
        """Return the record as one vector; integer tensors are ignored and may be missing."""
        known = frozenset(self.names)
        empty: Callable[[int], Any] = self._spare.vector
        if self.dtype != np.float32:
            empty = partial(np.empty, dtype=self.dtype)
        return read_tensors(record, self.layout, known, self._numbers, empty)

    def write(self, vector: Vector) -> ArrayRecord:
        """Return all tensors of the model with their names, shapes and types."""
        places = {segment.name: segment.slice for segment in self.layout.segments}
        record = ArrayRecord()
        for name in self.names:
            header = self.headers.get(name)
            record[name] = (
                self.constants[name] if header is None else header.array(vector[places[name]])
            )
        return record

    def _numbers(self, name: str, tensor: Array) -> npt.NDArray[Any]:
        """Return a tensor of the vector without copying it."""
        expected = self.headers[name]
        if tensor.stype == NPY and tensor.data.startswith(expected.text):
            header = expected
        else:  # another byte order, Fortran order, another version of the format, or wrong data
            header = _parse(name, tensor)
            check_tensor_type(name, header.tensor_type, expected.tensor_type)
        return header.numbers(name, tensor.data)


@dataclass(frozen=True)
class Header:
    """The header of a .npy file: its bytes, and the type, shape and order that it describes."""

    text: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    @classmethod
    def of(cls, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Header:
        """Return the header of a C-ordered array in native byte order."""
        own = dtype.newbyteorder("=")
        file = BytesIO()
        description = np.lib.format.dtype_to_descr(own)
        facts = {"descr": description, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, facts)
        return cls(file.getvalue(), own, shape)

    @property
    def tensor_type(self) -> TensorType:
        """The type and shape."""
        return self.dtype, self.shape

    def array(self, numbers: npt.NDArray[Any]) -> Array:
        """Return a Flower Array with these numbers, converted to the header's type."""
        payload = np.ascontiguousarray(numbers, self.dtype)
        return Array(self.dtype.name, self.shape, NPY, b"".join((self.text, payload.data)))

    def numbers(self, name: str, data: bytes) -> npt.NDArray[Any]:
        """Return the tensor in `data` without copying it."""
        size, there = math.prod(self.shape) * self.dtype.itemsize, len(data) - len(self.text)
        if there != size:
            raise RefusedUpdate(f"tensor {name!r} has {there} bytes of data instead of {size}")
        flat = np.frombuffer(data, self.dtype, offset=len(self.text)) if size else np.empty(0)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def record_of(model: Mapping[str, Any] | ArrayRecord) -> ArrayRecord:
    """Return a state_dict, a mapping of arrays or an ArrayRecord as an ArrayRecord."""
    if isinstance(model, ArrayRecord):
        return model
    if not isinstance(model, Mapping):
        raise BadInput(
            f"a model is a state_dict, a mapping from names to arrays or an ArrayRecord, "
            f"not {type(model).__name__}"
        )
    record = ArrayRecord()
    for name, tensor in model.items():
        record[str(name)] = _array(str(name), tensor)
    return record


def _array(name: str, tensor: Any) -> Array:
    if isinstance(tensor, Array):
        return tensor
    array = as_array(name, tensor)
    return Header.of(array.dtype, array.shape).array(array)


def _header_of(name: str, tensor: Array) -> Header:
    try:
        return _parse(name, tensor)
    except RefusedUpdate as error:
        raise BadInput(f"the model cannot be read: {error}") from None


def _parse(name: str, tensor: Array) -> Header:
    if tensor.stype != NPY:
        raise RefusedUpdate(f"tensor {name!r} has the format {tensor.stype!r:.40}, not {NPY!r}")
    file = BytesIO(tensor.data)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(file)
    except Exception as error:  # NumPy's parser raises errors of many types
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise RefusedUpdate(f"tensor {name!r} is not a NumPy array ({first:.80})") from None
    if dtype.hasobject:  # reading it would unpickle the objects, and a pickle can run any code
        raise RefusedUpdate(f"tensor {name!r} has Python objects instead of numbers")
    return Header(tensor.data[: file.tell()], dtype, tuple(shape), fortran)
