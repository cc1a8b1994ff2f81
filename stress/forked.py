"""Runs a function in a forked child of this warm process, and kills the child at a chosen moment.

A fork takes milliseconds; a new interpreter with its imports takes seconds.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import IO, Any, Literal, NamedTuple

# Built-in functions at whose calls a child may be killed: before or after the call.
FILE_CALLS = {
    *("write", "writelines", "flush", "fsync", "truncate", "ftruncate", "save_file"),
    *("serialize_file", "open", "close", "rename", "replace", "unlink", "remove", "rmdir"),
    *("mkdir", "flock", "chmod", "link", "symlink", "scandir", "utime"),
}
# Exit code of a child that raised.
RAISED = 70
# A child that is still busy after this many seconds hangs. Other processes may slow it down, so
# its processor time is bounded as well, and more tightly.
PROCESSOR_SECONDS, WALL_SECONDS = 60, 300

Send = Callable[[bytes], None]


class Kill(NamedTuple):
    """When a child is killed.

    moment: SIGKILL from outside, `at` seconds after the fork
    call:   SIGKILL at the start or the end of a file operation, the `at`-th that is counted
    torn:   in the middle of a write, as soon as any file has `at` bytes
    """

    kind: Literal["moment", "call", "torn"]
    at: float


class Ended(NamedTuple):
    """How a child ended."""

    code: int | None  # None: a signal ended it
    signal: int | None
    sent: bytes  # the messages before the end
    printed: str  # on standard output
    errors: str  # on standard error
    calls: int  # number of moments of kind "call"; known only if the child was not killed

    @property
    def was_killed(self) -> bool:
        return self.signal in (signal.SIGKILL, signal.SIGXFSZ)

    @property
    def hung(self) -> bool:
        return self.signal in (signal.SIGXCPU, signal.SIGALRM)

    @property
    def problem(self) -> str:
        """The end of the child's error output, for a report."""
        words = self.errors.strip().splitlines()[-6:]
        how = f"signal {self.signal}" if self.code is None else f"exit code {self.code}"
        return "\n".join([f"{'hang, ' if self.hung else ''}{how}", *words])


def run_forked(
    work: Callable[[Send], int | None],
    kill: Kill | None = None,
    *,
    memory: int | None = None,
    count_calls: bool = False,
    processor_seconds: int = PROCESSOR_SECONDS,
    wall_seconds: float = WALL_SECONDS,
) -> Ended:
    """Run `work` in a child, with a function that sends up to 4,096 bytes to this process."""
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Since Python 3.12, a fork with sleeping threads (of torch, of pytest) warns.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(receive)
            _limit(processor_seconds, memory)
            _be_child(work, kill, send, (out, err), count_calls)
        os.close(send)
        at = kill.at if kill is not None and kill.kind == "moment" else wall_seconds
        sent, hung = _listen(receive, child, at, kill is not None and kill.kind == "moment")
        os.close(receive)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        printed, errors = (f.read().decode("utf-8", "replace") for f in (out, err))
    marked, _, calls = errors.rpartition("\x00calls ")
    ended_by = None if code >= 0 else signal.SIGALRM if hung else -code
    return Ended(
        code if code >= 0 else None,
        ended_by,
        sent,
        printed,
        marked if marked or calls.isdecimal() else errors,
        int(calls) if calls.isdecimal() else 0,
    )


def _listen(pipe: int, child: int, seconds: float, is_kill: bool) -> tuple[bytes, bool]:
    """Read until the child ends, or kill it after `seconds`; return whether it hung."""
    parts: list[bytes] = []
    until = time.monotonic() + seconds
    killed = False
    while True:
        left = None if killed else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([pipe], [], [], left)
        if not ready:
            os.kill(child, signal.SIGKILL)
            killed = True
            continue
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts), killed and not is_kill
        parts.append(part)


def _be_child(
    work: Callable[[Send], int | None],
    kill: Kill | None,
    pipe: int,
    output: tuple[IO[bytes], IO[bytes]],
    count_calls: bool,
) -> None:
    """Run the work and exit; this function never returns."""
    code = RAISED
    calls = [0]
    try:
        os.dup2(output[0].fileno(), 1)
        os.dup2(output[1].fileno(), 2)
        as_usual: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
        sys.stdout = os.fdopen(1, "w", **as_usual)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", **as_usual)
        gc.disable()  # a collection would copy the parent's pages
        _arm(kill, calls, count_calls)
        code = work(lambda message: _send(pipe, message)) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else RAISED
    except BaseException:
        sys.setprofile(None)
        traceback.print_exc()
    finally:
        sys.setprofile(None)
        sys.stdout.flush()
        sys.stderr.flush()
        if count_calls:
            os.write(2, f"\x00calls {calls[0]}".encode())
        os._exit(code)


def _limit(processor_seconds: int, memory: int | None) -> None:
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    most = used + processor_seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _send(pipe: int, message: bytes) -> None:
    if len(message) > 4096:
        raise ValueError("a longer message could be torn by a kill")
    os.write(pipe, message)


def _arm(kill: Kill | None, calls: list[int], count_calls: bool) -> None:
    if kill is not None and kill.kind == "torn":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(kill.at), int(kill.at)))
    if count_calls or (kill is not None and kill.kind == "call"):
        last = -1 if kill is None or kill.kind != "call" else int(kill.at)

        def count(frame: FrameType, event: str, function: Any) -> None:
            if event in ("c_call", "c_return") and function.__name__ in FILE_CALLS:
                if isinstance(function.__self__, str | list) or frame.f_code is _send.__code__:
                    return  # str.replace, list.remove, a message to the parent
                calls[0] += 1
                if calls[0] == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
