"""Arrays of different lengths, such as the samples of each client, in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from fedraw.core.types import Ints


class Ragged(Sequence[Ints]):
    """A sequence of arrays of whole numbers, stored one after the other in `flat`.

    Array i is `flat[start[i]:start[i + 1]]`. A million small arrays take as much memory and time as
    two large ones.

    >>> rows = Ragged.of([[1, 2], [], [3]])
    >>> len(rows), rows[0].tolist(), rows.sizes.tolist(), rows.owners().tolist()
    (3, [1, 2], [2, 0, 1], [0, 0, 2])
    """

    def __init__(self, flat: Ints, start: Ints) -> None:
        self.flat, self.start = flat, start

    @classmethod
    def of(cls, arrays: Iterable[Sequence[int] | Ints]) -> Ragged:
        """Make a `Ragged` from arrays; another `Ragged` is not copied."""
        if isinstance(arrays, Ragged):
            return cls(arrays.flat, arrays.start)
        parts = [np.asarray(array, np.int64) for array in arrays]
        start = np.cumsum([0, *map(len, parts)])
        return cls(np.concatenate(parts) if parts else np.zeros(0, np.int64), start)

    @classmethod
    def by_owner(cls, owners: Ints, count: int) -> Ragged:
        """Return the positions that belong to each of `count` owners, in ascending order.

        >>> [own.tolist() for own in Ragged.by_owner(np.array([1, -1, 1, 0]), 2)]
        [[3], [0, 2]]
        """
        sizes = np.bincount(owners[owners >= 0], minlength=count)
        start = np.concatenate([[0], np.cumsum(sizes)])
        # Sorting these keys is faster than a stable argsort. Large arrays are changed in place,
        # because allocating new memory takes longer than the arithmetic.
        keys = owners * len(owners)
        keys += np.arange(len(owners))
        keys.sort()
        order = keys[len(keys) - start[-1] :]
        order -= np.repeat(np.arange(count) * len(owners), sizes)
        return cls(order, start)

    def __len__(self) -> int:
        return len(self.start) - 1

    @overload
    def __getitem__(self, index: int) -> Ints: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ints]: ...
    def __getitem__(self, index: int | slice) -> Ints | list[Ints]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]  # handles negative indices, and raises IndexError
        return self.flat[self.start[i] : self.start[i + 1]]

    @property
    def sizes(self) -> Ints:
        """The length of each array."""
        return np.diff(self.start)

    def owners(self) -> Ints:
        """Return, for each element of `flat`, the index of its array."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def mapped(self, values: Ints) -> Ragged:
        """Return `values` at the positions in these arrays, in arrays of the same lengths."""
        return Ragged(values[self.flat], self.start)

    def sorted(self) -> Ragged:
        """Return the same arrays, each in ascending order; no number may be negative."""
        if not self.flat.size:
            return self
        first = self.owners()
        first *= int(self.flat.max()) + 1
        keys = first + self.flat
        keys.sort()
        keys -= first
        return Ragged(keys, self.start)
