"""`fedraw watch`: follow runs in the terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from fedraw.cli.console import SafeConsole, print_json
from fedraw.eventlog.follow import RunsFollower
from fedraw.report.watch import Frame

# Maximum time to read logs before the screen is redrawn.
READ_SECONDS = 0.3


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder with one or more runs.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen and exit, as without a terminal.")
    ] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between updates of the screen.", min=0.1)
    ] = 1.0,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and exit.")
    ] = False,
) -> None:
    """Follow runs in the terminal until they are finished or Ctrl-C is pressed."""
    runs = RunsFollower(run)
    screen = SafeConsole(color_system=None if os.environ.get("NO_COLOR") else "auto")
    if not once and not json_ and sys.stdout.isatty() and not screen.is_dumb_terminal:
        screen.print(_live(runs, screen, every))
        return
    runs.poll()
    if json_:
        print_json(runs.as_json(time.time()))
    else:
        screen.print(_frame(runs))


def _live(runs: RunsFollower, screen: SafeConsole, every: float) -> Frame:
    """Draw until all runs are finished or Ctrl-C is pressed; return the last frame."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    complete = runs.poll(READ_SECONDS)
    frame = _frame(runs)
    try:
        with Live(frame, console=screen, screen=True, auto_refresh=False) as live:
            while not (complete and runs.is_over(time.time())):
                time.sleep(every if complete else 0)
                complete = runs.poll(READ_SECONDS)
                frame = _frame(runs)
                live.update(frame, refresh=True)
    except KeyboardInterrupt:
        pass
    return frame


def _frame(runs: RunsFollower) -> Frame:
    statuses, latest = runs.statuses(time.time()), runs.latest
    shown = next(status for status in statuses if status.folder == latest.folder)
    return Frame(statuses, shown, latest.detail())
