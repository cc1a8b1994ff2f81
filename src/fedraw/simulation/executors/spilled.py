"""Keeps what clients send in a temporary file, where all of it would not fit in memory."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.simulation.executors.base import Executor, Job, TrainingResult

# The bytes of a part of the file that is mapped at once; systems limit the number of mappings.
_PART = 2**28


class Spilled:
    """An executor that wraps another one and returns vectors that are in a file.

    The system keeps the parts of the file in memory that fit. The place of a vector is used again
    once nobody refers to it.
    """

    def __init__(self, executor: Executor, file: Any, size: int) -> None:
        self._executor = executor
        self._file = file
        self._bytes = size
        self._parts: list[mmap.mmap] = []
        self._per_part = max(1, _PART // size)
        self._free: list[int] = []

    @property
    def trains_ahead(self) -> bool:
        """Whether the wrapped executor trains jobs before they are collected."""
        return self._executor.trains_ahead

    def submit(self, job: Job) -> None:
        """Pass the job on."""
        self._executor.submit(job)

    def collect(self, client: ClientId) -> TrainingResult:
        """Return the result of the wrapped executor, whose vector is now in the file."""
        result = self._executor.collect(client)
        return result._replace(vector=self._kept(result.vector))

    def _kept(self, vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self._free:
            self._extend()
        place = self._free.pop()
        part, position = divmod(place, self._per_part)
        try:
            self._file.seek(place * self._bytes)
            self._file.write(np.ascontiguousarray(vector).data.cast("B"))
        except OSError as problem:
            raise BadInput(
                f"what clients send does not fit in the temporary folder {tempfile.gettempdir()} "
                f"({problem.strerror}); set TMPDIR to a folder with more space, or use fewer "
                "features or clients"
            ) from None
        # The buffer belongs to this array, so that parts of it keep the array itself alive.
        kept = np.frombuffer(self._parts[part], vector.dtype, vector.size, position * self._bytes)
        weakref.finalize(kept, self._free.append, place)
        return kept

    def _extend(self) -> None:
        """Map a further part of the file, which needs no space before it is written."""
        first, size = len(self._parts) * self._per_part, self._per_part * self._bytes
        self._file.truncate(first * self._bytes + size)
        mapped = mmap.mmap(
            self._file.fileno(), size, access=mmap.ACCESS_READ, offset=first * self._bytes
        )
        self._parts.append(mapped)
        self._free += reversed(range(first, first + self._per_part))


@contextmanager
def spilled(executor: Executor, size: int) -> Iterator[Spilled]:
    """Let the executor return vectors of `size` bytes in a file that disappears with the run."""
    # A mapping begins at a multiple of the granularity, so each place is as long.
    whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    with tempfile.TemporaryFile(buffering=0) as file:
        yield Spilled(executor, file, whole)
