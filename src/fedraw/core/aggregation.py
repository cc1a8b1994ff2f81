"""Weighted sums of model vectors in O(d) an arrival."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from fedraw.core.buffer import Slot
from fedraw.core.types import Vector

# A term of a weighted sum: how much of which vector.
Term = tuple[float, Vector]

# Elements per pass: a block of the sum and its scratch stay in the processor's cache.
BLOCK = 1 << 17

# A sum is taken anew once in so many turns of the buffer.
REFRESH = 32


@dataclass(eq=False)
class RunningSum:
    """Σ_j a_j θ_j, corrected term by term instead of summed anew.

    Kept in float64, the one exception to float32: over 100,000 corrections float32 drifts by about
    1e-5, float64 by 1e-14. It is part of a strategy's state, so that a resumed run keeps its bits.
    Only elementwise NumPy: BLAS would let the number of threads decide the last bits.

    >>> total = RunningSum.zeros(2)
    >>> total.add([(0.5, np.array([2, 4], np.float32)), (1.5, np.array([2, 0], np.float32))])
    >>> total.add([(-0.5, np.array([2, 4], np.float32))], divisor=1.5)
    array([2., 0.], dtype=float32)
    """

    total: npt.NDArray[np.float64]

    @classmethod
    def zeros(cls, size: int) -> RunningSum:
        return cls(np.zeros(size))

    @overload
    def add(self, terms: Sequence[Term]) -> None: ...
    @overload
    def add(self, terms: Sequence[Term], divisor: float) -> Vector: ...
    def add(self, terms: Sequence[Term], divisor: float | None = None) -> Vector | None:
        """Add a_j θ_j for each term; with a divisor, return the sum over it as a new model.

        One pass over memory for everything: this is what an arrival costs.
        """
        size = self.total.size
        mean: Vector | None = None if divisor is None else np.empty(size, np.float32)
        scratch = np.empty(min(BLOCK, size))
        for start in range(0, size, BLOCK):
            block = slice(start, start + BLOCK)
            total = self.total[block]
            part = scratch[: total.size]
            for a, vector in terms:
                np.copyto(part, vector[block])
                part *= a
                total += part
            if mean is not None and divisor is not None:
                np.divide(total, divisor, out=mean[block])
        return mean

    def mean(self, changes: Sequence[Term], slots: Collection[Slot], version: int) -> Vector:
        """The weighted mean of the slots, from what changed since the last one.

        It is summed anew where that is no dearer (a buffer of one, everyone's score changed), and
        every so often: a huge update that has left would leave its rounding error for ever.
        """
        if len(changes) > len(slots) or version % (REFRESH * len(slots)) == 0:
            self.clear()
            changes = [(slot.coefficient, slot.update.vector) for slot in slots]
        return self.add(changes, divisor=sum([slot.coefficient for slot in slots]))

    def clear(self) -> None:
        self.total.fill(0)


def inner(one: Vector, other: Vector) -> float:
    """⟨a, b⟩ in float64, elementwise for the same reason as a sum.

    >>> inner(np.array([1, 2], np.float32), np.array([3, 4], np.float32))
    11.0
    """
    total = 0.0
    scratch = np.empty(min(BLOCK, one.size))
    for start in range(0, one.size, BLOCK):
        a, b = one[start : start + BLOCK], other[start : start + BLOCK]
        product = np.multiply(a, b, out=scratch[: a.size], dtype=np.float64)
        total += float(np.add.reduce(product))
    return total
