"""Arrays that several processes see: one copy in memory, whatever their number."""

from __future__ import annotations

import os
import tempfile
from mmap import mmap
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt


class SharedArray:
    """A NumPy array in shared memory; a worker process that is started with it inherits the memory.

    The memory has no name in the file system. The kernel frees it with the last process that uses
    it, so it cannot be left behind, even if all processes are killed at once.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, descriptor: int | None = None
    ) -> None:
        size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._descriptor = _unnamed_file(size) if descriptor is None else descriptor
        self.array: npt.NDArray[Any] = np.ndarray(shape, dtype, mmap(self._descriptor, size))

    @classmethod
    def copy_of(cls, array: npt.NDArray[Any]) -> SharedArray:
        shared = cls(array.shape, array.dtype)
        shared.array[...] = array
        return shared

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.array.shape, self.array.dtype.str, DupFd(self._descriptor))

    def close(self) -> None:
        """Let go of the memory; views of the array that are still in use keep it alive."""
        self.array = np.empty(0)
        os.close(self._descriptor)


def _received(shape: tuple[int, ...], dtype: str, descriptor: Any) -> SharedArray:
    return SharedArray(shape, dtype, descriptor.detach())


def _unnamed_file(size: int) -> int:
    """A descriptor of memory, or of a file without a name where the system has no such memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedraw")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
