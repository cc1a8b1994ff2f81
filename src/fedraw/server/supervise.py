"""Supervises runs of a federation on an engine: starts one again whenever it fails.

The federation's folder has everything, so a new run with the same settings continues where the last
one stopped.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

LOG = logging.getLogger("fedraw.supervise")

# Seconds between two looks at a run, and the first and longest pause before a new run.
POLL = 15.0
PAUSE, LONGEST_PAUSE = 5.0, 300.0
# After this many runs in a row that fail within SHORT seconds, give up.
SHORT, PATIENCE = 60.0, 5


class EngineFailed(Exception):
    """The engine did not do what it was asked, most likely because its server is away."""


class EngineRefused(EngineFailed):
    """The engine refuses the run: a setting, the app or a name is wrong."""


class Engine(Protocol):
    """What starts runs; each method may raise EngineFailed."""

    def start(self) -> Any:
        """Start a run, and return its id."""

    def status(self, run: Any) -> str:
        """Return the status of a run, such as `finished:completed`."""

    def stop(self, run: Any) -> None:
        """Stop a run."""

    def log_of(self, run: Any) -> str:
        """Return where the log of a run is."""


class StopRequest:
    """Handles signals that ask this process to end: at once, or when it is no longer held."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True
        if not self._is_held:
            self.heed()

    @contextmanager
    def held(self) -> Iterator[None]:
        """In this block, a signal is only remembered."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def heed(self) -> None:
        """Exit if a signal came."""
        if self._is_asked:
            raise SystemExit(0)


STOP = StopRequest()


def supervise(
    engine: Engine,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Start runs until one completes or someone stops it, and return the exit code.

    The code is 0 if the federation has completed or was stopped. It is 1 if several runs in a row
    failed at once, or if the engine refuses the first one, because it would refuse the next as
    well.
    """
    run, short, pause = None, 0, PAUSE
    while True:
        begun = clock()
        try:
            with STOP.held():  # a run without a known number could not be stopped
                run = engine.start()
            LOG.info("run %s is under way", run)
            status = _follow(engine, run, sleep)
        except EngineFailed as problem:
            STOP.heed()
            if run is None and isinstance(problem, EngineRefused):
                LOG.error("%s", problem)
                return 1
            LOG.warning("%s; trying again in %.0f s", problem, pause)
        else:
            LOG.info("run %s: %s", run, status)
            if status in ("finished:completed", "finished:stopped"):
                return 0
            short = short + 1 if clock() - begun < SHORT else 0
            if short >= PATIENCE:
                LOG.error("%d runs in a row failed at once; see: %s", short, engine.log_of(run))
                return 1
            pause = PAUSE if short == 0 else pause
            LOG.warning("starting it again in %.0f s", pause)
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _follow(engine: Engine, run: Any, sleep: Callable[[float], None]) -> str:
    """Wait until a run has ended, and return its status."""
    try:
        STOP.heed()
        while True:
            sleep(POLL)
            try:
                status = engine.status(run)
            except EngineFailed as problem:
                LOG.warning("%s", problem)
                continue
            if status.startswith("finished"):
                return status
    except SystemExit:
        LOG.info("asked to stop: stopping run %s", run)
        engine.stop(run)
        raise


def supervise_until_stopped(engine: Engine) -> int:
    """Supervise as a command does: with a log on standard error, until a signal stops it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("fedraw").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, STOP)
    signal.signal(signal.SIGINT, STOP)
    return supervise(engine)
