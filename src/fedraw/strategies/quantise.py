"""Min-max quantisation of a vector, layer by layer, to a few bits per number.

With lo and hi the extremes of a layer and L = 2^b − 1,

    q = rint((x − lo) L / (hi − lo)),   Q(x) = lo + q (hi − lo) / L,

with ties to even, in float64. A layer with at most two distinct numbers is exact, and otherwise
|Q(x) − x| ≤ (hi − lo) / (2 L).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.aggregation import BLOCK
from fedraw.core.layout import Layout
from fedraw.core.types import Vector

# Bit widths that divide a byte evenly.
WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class QuantisedVector:
    """The codes q, packed `bits` to a number, and lo and hi of each layer.

    >>> kept = quantise(np.array([0, 4, 10], np.float32), bits=2, ends=[3])
    >>> kept.restore()
    array([ 0.       ,  3.3333333, 10.       ], dtype=float32)
    >>> kept.codes.tolist()  # 0, 1 and 3, from the low bits up
    [52]
    >>> quantise(np.empty(0, np.float32), bits=2, ends=[]).restore().size
    0
    """

    codes: npt.NDArray[np.uint8]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    ends: tuple[int, ...]
    bits: int

    def restore(self) -> Vector:
        """Return Q(x) as a new vector; it is empty in a run without training."""
        restored = np.empty(self.ends[-1] if self.ends else 0, np.float32)
        per_byte = 8 // self.bits
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        most = 2**self.bits - 1
        for layer, block in _blocks(self.ends):
            packed = self.codes[block.start // per_byte : -(-block.stop // per_byte)]
            codes = ((packed[:, None] >> shifts) & most).ravel()
            begin = block.start % per_byte
            codes = codes[begin : begin + block.stop - block.start]
            low, high = self.low[layer], self.high[layer]
            restored[block] = low + codes * (high - low) / most
            restored[block][codes == most] = high  # exact, however the division rounds
        return restored


def quantise(vector: Vector, bits: int, ends: Sequence[int]) -> QuantisedVector:
    """Quantise each layer separately; layer i ends before position `ends[i]`."""
    most, per_byte = 2**bits - 1, 8 // bits
    layers = [vector[start:end] for start, end in zip((0, *ends), ends, strict=False)]
    low = np.array([layer.min() for layer in layers], np.float64)
    high = np.array([layer.max() for layer in layers], np.float64)
    codes = np.zeros(-(-vector.size // per_byte) * per_byte, np.uint8)
    for layer, block in _blocks(ends):
        width = high[layer] - low[layer]
        if width:
            above = vector[block].astype(np.float64) - low[layer]
            codes[block] = np.rint(above * most / width)
    return QuantisedVector(_packed(codes, bits), low, high, tuple(ends), bits)


def layer_ends(layout: Layout | None, size: int) -> tuple[int, ...]:
    """Return the end of each layer in the vector; without a layout the vector is one layer."""
    if layout is None:
        return (size,) if size else ()
    return tuple(segment.start + segment.size for segment in layout.segments if segment.size)


def _packed(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    packed: npt.NDArray[Any] = codes[:: 8 // bits].copy()
    for place in range(1, 8 // bits):
        packed |= codes[place :: 8 // bits] << np.uint8(place * bits)
    return packed


def _blocks(ends: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield each layer in blocks that fit into the processor's cache."""
    for layer, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
        for begin in range(start, end, BLOCK):
            yield layer, slice(begin, min(begin + BLOCK, end))
