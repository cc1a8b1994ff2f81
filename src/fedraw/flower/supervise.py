"""Supervises a run of a Flower app: starts it again whenever it fails, until it has completed.

    python -m fedraw.flower.supervise APP SUPERLINK [--run-config TEXT]…

Flower gives up a run when its server process dies or its SuperLink is away for more than half a
minute, and does not start it again. The federation's folder has everything, so a new run with the
same settings continues where the last one stopped. Let systemd or the like run this command.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

LOG = logging.getLogger("fedraw.supervise")

# Seconds between two looks at a run, and the first and longest pause before a new run.
POLL = 15.0
PAUSE, LONGEST_PAUSE = 5.0, 300.0
# After this many runs in a row that fail within SHORT seconds, give up.
SHORT, PATIENCE = 60.0, 5
# Flower's message about a SuperLink that it cannot reach.
AWAY = "Connection to the SuperLink is unavailable"


class FlowerFailed(Exception):
    """The `flwr` command failed, most likely because the SuperLink is away."""


class FlowerRefused(FlowerFailed):
    """Flower refuses the run: a setting, the app or the connection's name is wrong."""


@dataclass(frozen=True)
class Flower:
    """The `flwr` command."""

    superlink: str
    program: str = "flwr"

    def run(self, app: str, run_config: Sequence[str]) -> int:
        """Submit a run, and return its id."""
        words = ["run", app, self.superlink]
        for text in run_config:
            words += ["--run-config", text]
        return int(self._ask(words)["run-id"])

    def status(self, run: int) -> str:
        """Return the status of a run, such as `finished:completed`."""
        found = self._ask(["list", self.superlink, "--run-id", str(run)])["runs"]
        return str(found[0]["status"]) if found else "finished:forgotten"

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._ask(["stop", str(run), self.superlink])

    def _ask(self, words: Sequence[str]) -> Any:
        command = [self.program, *words, "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            reply = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            raise FlowerFailed(f"{' '.join(command[:2])}: {problem}") from None
        if done.returncode or not reply.get("success", True):
            text = reply.get("error-message") or done.stderr.strip() or done.stdout.strip()
            kind = FlowerFailed if AWAY in text else FlowerRefused
            raise kind(f"{' '.join(command[:2])}: {text.strip()[-500:]}")
        return reply


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
    flower: Flower,
    app: str,
    run_config: Sequence[str],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Start runs until one completes or someone stops it, and return the exit code.

    The code is 0 if the federation has completed or was stopped. It is 1 if several runs in a row
    failed at once, or if Flower refuses the first one, because it would refuse the next as well.
    """
    run, short, pause = None, 0, PAUSE
    while True:
        begun = clock()
        try:
            with STOP.held():  # a run without a known number could not be stopped
                run = flower.run(app, run_config)
            LOG.info("run %d is under way", run)
            status = _follow(flower, run, sleep)
        except FlowerFailed as problem:
            STOP.heed()
            if run is None and isinstance(problem, FlowerRefused):
                LOG.error("%s", problem)
                return 1
            LOG.warning("%s; trying again in %.0f s", problem, pause)
        else:
            LOG.info("run %d: %s", run, status)
            if status in ("finished:completed", "finished:stopped"):
                return 0
            short = short + 1 if clock() - begun < SHORT else 0
            if short >= PATIENCE:
                LOG.error("%d runs in a row failed at once; see: flwr log %d", short, run)
                return 1
            pause = PAUSE if short == 0 else pause
            LOG.warning("starting it again in %.0f s", pause)
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _follow(flower: Flower, run: int, sleep: Callable[[float], None]) -> str:
    """Wait until a run has ended, and return its status."""
    try:
        STOP.heed()
        while True:
            sleep(POLL)
            try:
                status = flower.status(run)
            except FlowerFailed as problem:
                LOG.warning("%s", problem)
                continue
            if status.startswith("finished"):
                return status
    except SystemExit:
        LOG.info("asked to stop: stopping run %d", run)
        flower.stop(run)
        raise


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m fedraw.flower.supervise", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("app", help="the app's folder")
    parser.add_argument("superlink", help="the connection's name in Flower's config.toml")
    parser.add_argument("--run-config", action="append", default=[], metavar="TEXT")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, STOP)
    signal.signal(signal.SIGINT, STOP)
    sys.exit(supervise(Flower(options.superlink), options.app, options.run_config))


if __name__ == "__main__":
    main()
