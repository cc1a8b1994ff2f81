"""Worker processes: how they start, how they end with their parent, and the memory they share."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from multiprocessing import connection
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.errors import BadInput, MissingExtra

# Workers start as fresh interpreters: a forked copy of a process that runs torch may deadlock.
CONTEXT = multiprocessing.get_context("spawn")


def end_with_parent() -> None:
    """End this worker as soon as its parent is gone, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("end_with_parent is for worker processes")

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start processes that Ctrl-C never reaches, and that do not run the user's script again.

    A terminal sends Ctrl-C to all of its processes. A worker that is still importing its modules
    would answer with a traceback, so it inherits a mask that blocks the signal. In this process
    Ctrl-C waits until all workers have started, because a half-started worker would fail with a
    traceback too.

    Python lets a new process import the script that started it, so that functions of the script can
    be found by name. A script without `if __name__ == "__main__":` would then run once more in
    every worker. The workers of fedraw need no script, because `pack` sends functions by value.

    A worker does import the modules of the user's parts. A module that runs a simulation when it is
    imported would start workers in each worker, without end, so this is refused.
    """
    if _is_unpacking:
        raise BadInput(
            "a worker process imports the modules of your own parts, and one of these modules "
            "starts worker processes of its own when it is imported; move its simulations below "
            "`if __name__ == '__main__':`"
        )
    asked = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()  # others have no handlers
    handler = signal.signal(signal.SIGINT, lambda *_: asked.set()) if is_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    script = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {k: script.pop(k) for k in ("__file__", "__spec__") if k in script}
    script["__spec__"] = None  # `multiprocessing` expects the attribute
    try:
        yield
    finally:
        del script["__spec__"]
        script.update(hidden)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if asked.is_set():
        signal.raise_signal(signal.SIGINT)


def pack(thing: object, name: str) -> bytes:
    """Pickle something for another process; `unpack` is the inverse.

    What was defined in a script or in a notebook is sent by value, because a worker cannot import
    it. Such bytes only ever pass from one process to another; they are never stored.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise MissingExtra("cloudpickle", "sim") from None
    try:
        content: bytes = cloudpickle.dumps(thing)
    except Exception as problem:  # the user's objects may fail in any way
        raise BadInput(
            f"{name} cannot be sent to a worker process ({type(problem).__name__}: {problem}); "
            "keep locks, open files and generators out of it, or run with jobs=1 and the inline "
            "executor"
        ) from None
    return content


# Whether this process imports and unpickles what its parent sent.
_is_unpacking = False


def unpack(content: bytes, name: str) -> Any:
    """Return what `pack` made into these bytes in the parent process."""
    global _is_unpacking  # noqa: PLW0603 - a module that is imported meanwhile must see it
    _is_unpacking = True
    try:
        return pickle.loads(content)
    except Exception as problem:  # an import runs code that may fail in any way
        raise cannot_load(name, problem) from None
    finally:
        _is_unpacking = False


def leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C in this worker; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def cannot_load(name: str, problem: BaseException) -> BadInput:
    """Return the error for a worker that cannot import or unpickle what its parent sent."""
    return BadInput(
        f"a worker process cannot load {name} ({type(problem).__name__}: {problem}); define it in "
        "a module that can be imported, or use the inline executor"
    )


def death_notice(worker: str, exit_code: int | None, work: str = "") -> str:
    """Say how a worker died, and what may have been the cause.

    >>> death_notice("worker 0", -9, " while it trained client 'a'")
    "worker 0 died (exit code -9) while it trained client 'a'; was it killed, or out of memory?"
    """
    if exit_code == -signal.SIGILL:
        return (
            f"{worker} died from signal SIGILL (illegal instruction){work}; the processor "
            "announces an instruction that torch may not use, such as AMX; set the environment "
            "variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
    return f"{worker} died (exit code {exit_code}){work}; was it killed, or out of memory?"


class SharedArray:
    """A NumPy array in shared memory. A worker process that is started with it inherits the memory.

    The memory has no name in the file system. The kernel frees it together with the last process
    that uses it, so nothing is left behind even if all processes are killed at once.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, descriptor: int | None = None
    ) -> None:
        size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._descriptor = _unnamed_file(size) if descriptor is None else descriptor
        self.array: npt.NDArray[Any] = np.ndarray(shape, dtype, mmap(self._descriptor, size))

    @classmethod
    def copy_of(cls, array: npt.NDArray[Any]) -> SharedArray:
        """Copy an array into new shared memory."""
        shared = cls(array.shape, array.dtype)
        shared.array[...] = array
        return shared

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.array.shape, self.array.dtype.str, DupFd(self._descriptor))

    def close(self) -> None:
        """Release the memory. Views of the array that are still in use keep it alive."""
        self.array = np.empty(0)
        os.close(self._descriptor)


def _received(shape: tuple[int, ...], dtype: str, descriptor: Any) -> SharedArray:
    return SharedArray(shape, dtype, descriptor.detach())


def _unnamed_file(size: int) -> int:
    """Return a descriptor of anonymous memory, or of an unnamed file without such memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedraw")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
