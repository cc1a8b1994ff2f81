"""Logs a line about the progress of a federation at regular intervals."""

from __future__ import annotations

import logging
from pathlib import Path

from fedraw.core.text import one_line, several
from fedraw.errors import BadInput
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.live import RunDetail, RunStatus
from fedraw.eventlog.log_file import LOG

LOGGER = logging.getLogger("fedraw.server")

# The log is read for at most this many seconds per call, so that training does not wait. A
# restarted server reads a long log in several calls.
READ_SECONDS = 0.05
# The line has at most this many of the user's own metrics.
MOST_OWN = 4


class ServerProgress:
    """Follows the server's own event log, and logs a line about it every `every` seconds."""

    def __init__(self, folder: Path, every: float) -> None:
        self._follower = LogFollower(folder / LOG)
        self._every = every
        self._next: float | None = None

    def tick(self, now: float, wall: float) -> None:
        """Log the line if it is due; `wall` is in unix seconds."""
        if self._next is None:
            self._next = now + self._every
        if now < self._next:
            return
        try:
            if not self._follower.poll(READ_SECONDS):
                return
        except BadInput:  # the server itself reports a damaged log
            return
        self._next = now + self._every
        LOGGER.info("%s", progress_text(self._follower.status(wall), self._follower.detail()))


def progress_text(status: RunStatus, detail: RunDetail) -> str:
    """Return the line: arrivals, version, the last metrics, members and labels at risk."""
    of = "" if status.events is None else f" of {status.events:,}"
    parts = [f"{status.event:,}{of} arrivals", f"version {detail.version:,}"]
    parts += [f"{key} {value:.1f}" for key, value in status.metrics.items() if value is not None]
    parts += [
        f"{own.metric} {own.value:.4g}" for own in detail.own[:MOST_OWN] if own.value is not None
    ]
    parts.append(f"{detail.members} sites")
    if detail.at_risk:
        named = (f"{one_line(risk.label)} ({risk.reasons[0]})" for risk in detail.at_risk)
        parts.append(f"labels at risk: {several(named)}")
    else:
        parts.append("no label at risk")
    return "; ".join(parts)
