"""Keep a run of a Flower app going: where it fails, start it again, until it has completed.

    python -m fedraw.flower.keep APP SUPERLINK [--run-config TEXT]…

Flower gives a run up when its server process dies or its SuperLink is away for more than half a
minute, and starts nothing again by itself. The federation's folder has everything, so a new run
with the same settings goes on where the last one was. For a supervisor (systemd) to run.
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

LOG = logging.getLogger("fedraw.keep")

# Seconds: how often to look, the first and the longest pause before a new run.
LOOK = 15.0
PAUSE, LONGEST_PAUSE = 5.0, 300.0
# A run that fails within this time was not a success; so many in a row are too many.
SHORT, PATIENCE = 60.0, 5


# What Flower says of a SuperLink that it cannot reach.
AWAY = "Connection to the SuperLink is unavailable"


class Trouble(Exception):
    """Flower's command did not do what was asked; most likely the SuperLink is away."""


class Refusal(Trouble):
    """It answered that it will not: a setting, the app or the connection's name is wrong."""


@dataclass(frozen=True)
class Flower:
    """The `flwr` command."""

    superlink: str
    program: str = "flwr"

    def run(self, app: str, run_config: Sequence[str]) -> int:
        words = ["run", app, self.superlink]
        for text in run_config:
            words += ["--run-config", text]
        return int(self._ask(words)["run-id"])

    def status(self, run: int) -> str:
        found = self._ask(["list", self.superlink, "--run-id", str(run)])["runs"]
        return str(found[0]["status"]) if found else "finished:forgotten"

    def stop(self, run: int) -> None:
        self._ask(["stop", str(run), self.superlink])

    def _ask(self, words: Sequence[str]) -> Any:
        command = [self.program, *words, "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            answer = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            raise Trouble(f"{' '.join(command[:2])}: {problem}") from None
        if done.returncode or not answer.get("success", True):
            told = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
            kind = Trouble if AWAY in told else Refusal
            raise kind(f"{' '.join(command[:2])}: {told.strip()[-500:]}")
        return answer


class Stop:
    """Someone asks this process to end: at once, or as soon as it can."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True
        if not self._is_held:
            self.heed()

    @contextmanager
    def held(self) -> Iterator[None]:
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def heed(self) -> None:
        if self._is_asked:
            raise SystemExit(0)


STOP = Stop()


def keep(
    flower: Flower,
    app: str,
    run_config: Sequence[str],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """0 when the federation has completed or someone stopped it.

    1 if runs keep failing at once, or if Flower refuses the first one: it would refuse the next.
    """
    run, short, pause = None, 0, PAUSE
    while True:
        begun = clock()
        try:
            with STOP.held():  # a run whose number is not known yet could not be stopped
                run = flower.run(app, run_config)
            LOG.info("run %d is under way", run)
            status = _follow(flower, run, sleep)
        except Trouble as problem:
            STOP.heed()
            if run is None and isinstance(problem, Refusal):
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
    """The status in which a run ended; while its SuperLink is away, nothing is known."""
    try:
        STOP.heed()
        while True:
            sleep(LOOK)
            try:
                status = flower.status(run)
            except Trouble as problem:
                LOG.warning("%s", problem)
                continue
            if status.startswith("finished"):
                return status
    except SystemExit:
        LOG.info("asked to stop: stopping run %d", run)
        flower.stop(run)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedraw.flower.keep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("app", help="the app's folder")
    parser.add_argument("superlink", help="the connection's name in Flower's config.toml")
    parser.add_argument("--run-config", action="append", default=[], metavar="TEXT")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, STOP)
    signal.signal(signal.SIGINT, STOP)
    sys.exit(keep(Flower(options.superlink), options.app, options.run_config))


if __name__ == "__main__":
    main()
