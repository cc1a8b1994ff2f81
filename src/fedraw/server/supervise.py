"""Supervises the runs of a federation on an engine: starts a new run whenever one fails.

The federation's folder has its whole state, so a new run with the same settings continues where the
last run stopped.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

LOGGER = logging.getLogger("fedraw.supervise")

# Seconds between two checks of a run, and the first and longest pause before a new run.
POLL = 15.0
PAUSE, LONGEST_PAUSE = 5.0, 300.0
# Give up after PATIENCE runs in a row that each fail within SHORT seconds.
SHORT, PATIENCE = 60.0, 5
# A server begins its last message with this text if every further run would fail in the same way.
REFUSED_RUN = "fedraw refuses this run"
# The status of such a run.
REFUSED = "finished:refused"


class EngineFailed(Exception):
    """The engine failed to execute a request, most likely because its server is unreachable."""


class EngineRefused(EngineFailed):
    """The engine refuses the run, because a setting, the app or a name is wrong."""


class Engine(Protocol):
    """Starts, observes and stops runs; each method may raise EngineFailed."""

    def start(self) -> Any:
        """Start a run, and return its id."""

    def status(self, run: Any) -> str:
        """Return the status of a run, such as `finished:completed`."""

    def reason_of(self, run: Any) -> str:
        """Return why a run has failed, on one line, after its `status`; empty if unknown."""

    def stop(self, run: Any) -> None:
        """Stop a run."""

    def log_of(self, run: Any) -> str:
        """Return the place of a run's log, or the command that shows it."""


class StopRequest:
    """Exits when a signal asks this process to end: at once, or after a `deferred` block.

    Further signals have no effect, so they do not interrupt what the first one has begun.
    """

    def __init__(self) -> None:
        self._is_deferred = self._is_requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_first, self._is_requested = not self._is_requested, True
        if is_first and not self._is_deferred:
            self.exit_if_requested()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the exit for a signal that arrives in this block; `exit_if_requested` does it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def exit_if_requested(self) -> None:
        """Exit if a signal has arrived."""
        if self._is_requested:
            raise SystemExit(0)


STOP = StopRequest()


def supervise(
    engine: Engine,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Start runs until one completes or is stopped, and return the exit code.

    The code is 0 if the federation has completed or was stopped, and 1 if PATIENCE runs in a row
    failed within SHORT seconds. It is 2 if the engine or the server refuses the first run, because
    it would refuse the next one as well.
    """
    run, short, pause = None, 0, PAUSE
    while True:
        begun, is_first = clock(), run is None
        try:
            with STOP.deferred():  # a run can be stopped only once its id is known
                run = engine.start()
                LOGGER.info("run %s has started", run)
            status = _follow(engine, run, sleep)
        except EngineFailed as problem:
            STOP.exit_if_requested()
            if run is None and isinstance(problem, EngineRefused):
                LOGGER.error("%s", problem)
                return 2
            LOGGER.warning("%s; trying again in %.0f s", problem, pause)
        else:
            LOGGER.info("run %s: %s", run, status)
            if status in ("finished:completed", "finished:stopped"):
                return 0
            reason = engine.reason_of(run)
            said = f": {reason}" if reason else f"; see: {engine.log_of(run)}"
            LOGGER.error("run %s has failed%s", run, said)
            if is_first and status == REFUSED:
                return 2
            short = short + 1 if clock() - begun < SHORT else 0
            if short >= PATIENCE:
                LOGGER.error("%d runs in a row failed at once; see: %s", short, engine.log_of(run))
                return 1
            pause = PAUSE if short == 0 else pause
            LOGGER.warning("starting a new run in %.0f s", pause)
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _follow(engine: Engine, run: Any, sleep: Callable[[float], None]) -> str:
    """Wait until a run has ended, and return its status."""
    try:
        while True:
            STOP.exit_if_requested()
            sleep(POLL)
            try:
                status = engine.status(run)
            except EngineFailed as problem:
                LOGGER.warning("%s", problem)
                continue
            if status.startswith("finished"):
                return status
    except SystemExit:
        LOGGER.info("received a stop signal: stopping run %s", run)
        try:
            engine.stop(run)
        except EngineFailed as problem:
            LOGGER.error("run %s may still be running: %s", run, problem)
            raise SystemExit(1) from None
        raise


def supervise_until_stopped(engine: Engine) -> int:
    """Supervise with a log on standard error, until a signal stops this process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("fedraw").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, STOP)
    signal.signal(signal.SIGINT, STOP)
    return supervise(engine)
