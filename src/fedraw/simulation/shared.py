"""Arrays that several processes see: one copy in memory, whatever their number."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import numpy.typing as npt


class SharedArray:
    """A NumPy array in shared memory; sent to another process, only its name travels.

    The process that made it frees it with `close`; a killed one leaves that to Python's resource
    tracker.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, name: str | None = None
    ) -> None:
        size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._owns = name is None
        self._memory = SharedMemory(name, create=self._owns, size=size)
        self.array: npt.NDArray[Any] = np.ndarray(shape, dtype, self._memory.buf)

    @classmethod
    def copy_of(cls, array: npt.NDArray[Any]) -> SharedArray:
        shared = cls(array.shape, array.dtype)
        shared.array[...] = array
        return shared

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArray, (self.array.shape, self.array.dtype.str, self._memory.name)

    def close(self) -> None:
        self.array = np.empty(0)  # a view of the memory would forbid to close it
        self._memory.close()
        if self._owns:
            self._memory.unlink()
