"""fedraw watch: runs while they run."""

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
from fedraw.experiments.watched import Watched
from fedraw.report.watch import Frame

# Seconds of reading before the screen is drawn again.
AT_ONCE = 0.3


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of several.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and end, as where no terminal is.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON and end.")] = False,
) -> None:
    """Watch runs in the terminal, until they are finished or Ctrl-C is pressed."""
    watched = Watched(run)
    screen = SafeConsole(color_system=None if os.environ.get("NO_COLOR") else "auto")
    if not once and not json_ and sys.stdout.isatty() and not screen.is_dumb_terminal:
        screen.print(_live(watched, screen, every))
        return
    watched.look()
    if json_:
        print_json(watched.as_json(time.time()))
    else:
        screen.print(_frame(watched))


def _live(watched: Watched, screen: SafeConsole, every: float) -> Frame:
    """Draw until all runs are finished or someone wants to leave; return the last frame."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    complete = watched.look(AT_ONCE)
    frame = _frame(watched)
    try:
        with Live(frame, console=screen, screen=True, auto_refresh=False) as live:
            while not (complete and watched.is_over(time.time())):
                time.sleep(every if complete else 0)
                complete = watched.look(AT_ONCE)
                frame = _frame(watched)
                live.update(frame, refresh=True)
    except KeyboardInterrupt:
        pass
    return frame


def _frame(watched: Watched) -> Frame:
    runs, latest = watched.statuses(time.time()), watched.latest
    shown = next(status for status in runs if status.folder == latest.folder)
    return Frame(runs, shown, latest.detail())
