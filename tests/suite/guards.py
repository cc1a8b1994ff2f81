"""What keeps a test run from waiting for ever: dead workers and tests that hang end it at once.

pytest-xdist replaces a dead worker and gives the fatal test to the new one, without end.
`--max-worker-restart=0` in `parallel.txt` forbids that, but lets the other workers go on through
all the files they hold, and gives one of them the fatal test. A run whose worker dies between two
tests, or before the first one, even counts as passed.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psutil
import pytest

STDERR = pytest.StashKey[int]()
A_WORKER_DIED = pytest.StashKey[bool]()
# Held from the expiry of a time limit to the end of the process: no other test may begin then.
EXPIRED = threading.Lock()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("time_limit", "seconds that a test may take with its fixtures", default="600")
    parser.addini("slow_time_limit", "the same for a test that is marked slow", default="7200")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # while a test runs, pytest captures the original


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Note that a worker of pytest-xdist has died, in a test or not."""
    if error:
        node.config.stash[A_WORKER_DIED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if A_WORKER_DIED in session.config.stash:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """End the whole run when a worker of pytest-xdist has died."""
    report.node.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(f"{crashitem} ended its worker process, so the run stops here", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process, and all processes below it, if the test takes longer than its limit.

    A test that never releases the interpreter's lock is ended after twice the limit, by a thread
    that needs no lock; that one cannot end the processes below.
    """
    kind = "slow_time_limit" if item.get_closest_marker("slow") else "time_limit"
    limit, stderr = float(item.config.getini(kind)), item.config.stash[STDERR]
    timer = threading.Timer(limit, _end, (f"{item.nodeid} took longer than {limit:g} s", stderr))
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(2 * limit, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        with EXPIRED:
            timer.cancel()


def _end(reason: str, stderr: int) -> None:
    with EXPIRED:
        os.write(stderr, f"\n{reason}, so its process is ended; it was here:\n".encode())
        faulthandler.dump_traceback(stderr)
        _kill_children()
        os._exit(1)


def _kill_children() -> None:
    for _ in range(10):  # a child that is not dead yet may start another one
        children = psutil.Process().children(recursive=True)
        if not children:
            return
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=1)
