"""Weighted sums and averages of model vectors, in O(d) per arrival."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload
from weakref import finalize

import numpy as np
import numpy.typing as npt

from fedraw.core.buffer import Slot
from fedraw.core.types import Vector

# A term of a weighted sum: a coefficient and a vector.
Term = tuple[float, Vector]

# Numbers per pass: a block of the sum and its scratch array fit into the processor's cache.
BLOCK = 1 << 15
# Numbers per pass of an inner product, whose last bits depend on it.
INNER_BLOCK = 1 << 17

# The sum is recomputed from scratch after this many turns of the buffer.
REFRESH = 32

# A term that is this many times larger than the sum dwarfs it. The rounding error that such a term
# leaves behind may reach 1e-10 of the sum. Ordinary training never has such terms.
DWARFS = 2.0**20


class SpareMemory:
    """Hands out vectors in the memory of vectors that nobody uses any more.

    The system clears fresh memory page by page, which takes about as long as filling it. A vector's
    memory comes back when the vector and all views of it are gone: a view of a vector that lies in
    foreign memory keeps the vector itself.
    """

    # Smaller vectors are not worth it, and more than so many pieces are not kept.
    SMALLEST, MOST = 1 << 18, 2

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []

    def vector(self, size: int) -> Vector:
        """Return a vector of so many numbers, whatever they are."""
        if size < self.SMALLEST:
            return np.empty(size, np.float32)
        while self._pieces and len(self._pieces[-1]) != 4 * size:
            self._pieces.pop()
        piece = self._pieces.pop() if self._pieces else bytearray(4 * size)
        made = np.frombuffer(piece, np.float32)
        finalize(made, self._give_back, piece).atexit = False
        return made

    def _give_back(self, piece: bytearray) -> None:
        if len(self._pieces) < self.MOST:
            self._pieces.append(piece)


@dataclass(eq=False)
class RunningSum:
    """Σ_j a_j θ_j, corrected term by term instead of recomputed.

    The sum is in float64, the one exception to float32: over 100,000 corrections float32 drifts by
    about 1e-5, float64 by 1e-14. It is a part of a strategy's state, so a resumed run keeps its
    bits. All operations are elementwise NumPy, because the last bits of BLAS results depend on the
    number of threads.

    >>> total = RunningSum.zeros(2)
    >>> total.add([(0.5, np.array([2, 4], np.float32)), (1.5, np.array([2, 0], np.float32))])
    >>> total.add([(-0.5, np.array([2, 4], np.float32))], divisor=1.5)
    array([2., 0.], dtype=float32)
    """

    total: npt.NDArray[np.float64]
    # The largest number in any term since the sum was last recomputed.
    peak: float = 0.0
    _spare: SpareMemory = field(init=False, default_factory=SpareMemory, repr=False)

    @classmethod
    def zeros(cls, size: int) -> RunningSum:
        """Return an empty sum of vectors of length `size`."""
        return cls(np.zeros(size))

    @overload
    def add(self, terms: Sequence[Term]) -> None: ...
    @overload
    def add(self, terms: Sequence[Term], divisor: float) -> Vector: ...
    def add(self, terms: Sequence[Term], divisor: float | None = None) -> Vector | None:
        """Add a_j θ_j for each term; with a divisor, return the sum divided by it as a model."""
        return self._add(terms, divisor)[0]

    def _add(
        self, terms: Sequence[Term], divisor: float | None, find_largest: bool = False
    ) -> tuple[Vector | None, float]:
        """Add the terms; return the quotient, and the largest number in an added term if wanted.

        One pass over memory does everything, because an arrival costs little more than that pass.
        """
        size = self.total.size
        mean: Vector | None = None if divisor is None else self._spare.vector(size)
        scratch = np.empty(min(BLOCK, size))
        largest = 0.0
        for start in range(0, size, BLOCK):
            block = slice(start, start + BLOCK)
            total = self.total[block]
            part = scratch[: total.size]
            for a, vector in terms:
                own = vector[block]
                if find_largest and a > 0:
                    largest = max(largest, a * _largest(own))
                np.copyto(part, own)
                part *= a
                total += part
            if mean is not None and divisor is not None:
                np.divide(total, divisor, out=part)
                mean[block] = part
        return mean, largest

    def mean(self, changes: Sequence[Term], slots: Collection[Slot], version: int) -> Vector:
        """Return the weighted mean of the slots, computed from the changes since the last mean.

        The sum is recomputed from scratch in three cases: when that is no slower (the buffer has
        one slot, or all scores have changed), every `REFRESH` turns of the buffer, and when one of
        its terms dwarfs it, because the rounding error of that term would be visible in the mean.
        """
        divisor = sum([slot.coefficient for slot in slots])
        if len(changes) <= len(slots) and version % (REFRESH * len(slots)):
            mean, largest = self._add(changes, divisor, find_largest=True)
            if mean is not None and not self._is_dwarfed(largest):
                return mean
        self.clear()
        terms = [(slot.coefficient, slot.update.vector) for slot in slots]
        mean, self.peak = self._add(terms, divisor, find_largest=True)
        assert mean is not None
        return mean

    def correct(self, changes: Sequence[Term], terms: Iterable[Term]) -> None:
        """Add the changes, after which the sum is that of `terms`.

        The sum is recomputed from the terms if a term that was ever part of it dwarfs it.
        """
        _, largest = self._add(changes, None, find_largest=True)
        if self._is_dwarfed(largest):
            self.recompute(terms)

    def recompute(self, terms: Iterable[Term]) -> None:
        """Compute the sum from scratch, one term after the other."""
        self.clear()
        for term in terms:
            self.peak = max(self.peak, self._add([term], None, find_largest=True)[1])

    def clear(self) -> None:
        """Set the sum to zero."""
        self.total.fill(0)
        self.peak = 0.0

    def _is_dwarfed(self, largest: float) -> bool:
        """Return whether a term since the last recomputation dwarfs the sum.

        `largest` is the largest number in a term that was just added. For an ordinary sum the first
        block settles it.
        """
        self.peak = peak = max(self.peak, largest)
        if not peak:
            return False
        starts = range(0, self.total.size, BLOCK)
        return all(peak > DWARFS * _largest(self.total[i : i + BLOCK]) for i in starts)


def _largest(block: npt.NDArray[Any]) -> float:
    return max(float(np.maximum.reduce(block)), -float(np.minimum.reduce(block)))


def inner(one: Vector, other: Vector) -> float:
    """Return ⟨a, b⟩ in float64, without BLAS for the same reason as `RunningSum`.

    >>> inner(np.array([1, 2], np.float32), np.array([3, 4], np.float32))
    11.0
    """
    total = 0.0
    scratch = np.empty(min(INNER_BLOCK, one.size))
    for start in range(0, one.size, INNER_BLOCK):
        a, b = one[start : start + INNER_BLOCK], other[start : start + INNER_BLOCK]
        product = np.multiply(a, b, out=scratch[: a.size], dtype=np.float64)
        total += float(np.add.reduce(product))
    return total
