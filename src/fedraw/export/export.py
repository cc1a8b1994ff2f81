"""Reads event logs, also while they grow, and writes their series to a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LogTail, find_logs
from fedraw.export.scalars import RunSeries, Scalars
from fedraw.export.targets import Target

# Seconds between two polls of growing logs.
POLL_SECONDS = 1.0


class Exported(NamedTuple):
    """The result of the export of one run."""

    log: Path
    name: str
    evaluations: int
    arrivals: int | None  # None if the target does not accept arrivals
    finished: bool
    destination: str


class _RunExport:
    """The export of one log to a target, which is opened when the log has its first record."""

    def __init__(self, log: Path, make: Callable[[RunSeries, Path], Target], out: Path) -> None:
        self.series = RunSeries(log)
        self._tail = LogTail(log)
        self._make, self._out = make, out
        self._target: Target | None = None
        self._evaluations = self._arrivals = 0

    def poll(self) -> None:
        """Export the records that were appended."""
        for record in self._tail.read():
            rows = list(self.series.observe(record))
            if self._target is None:
                self._target = self._make(self.series, self._out)
            for row in rows:
                if isinstance(row, Scalars):
                    self._evaluations += 1
                    self._target.scalars(row)
                elif self._target.accepts_arrivals:
                    self._arrivals += 1
                    self._target.arrival(row)
        if self._target is not None:
            self._target.flush()

    def close(self) -> Exported:
        """End the export of this run."""
        series, target = self.series, self._target
        if target is not None:
            target.close()
        arrivals = self._arrivals if target is not None and target.accepts_arrivals else None
        destination = (target and target.destination) or str(self._out)
        return Exported(
            series.log, series.name, self._evaluations, arrivals, series.finished, destination
        )


def export_runs(
    runs: Sequence[Path],
    make: Callable[[RunSeries, Path], Target],
    out: Path,
    *,
    follow: bool = False,
    until: Callable[[], bool] = lambda: False,
) -> list[Exported]:
    """Export all runs at or below these folders.

    Args:
        runs: Folders with event logs.
        make: Makes the target of one run; one of the values of `TARGETS`.
        out: The folder for the exported files.
        follow: Continue until all runs are finished, or until `until` returns true.
        until: Called once a second while following.

    """
    logs = list(dict.fromkeys(log for folder in runs for log in find_logs(folder)))
    exports = [_RunExport(log, make, out) for log in logs]
    names: dict[str, Path] = {}
    try:
        while True:
            for export in exports:
                export.poll()
                known = names.setdefault(export.series.name, export.series.log)
                if known != export.series.log:
                    raise BadInput(
                        f"{known.parent} and {export.series.log.parent} would both be written as "
                        f"{export.series.name}; export each of them to another out=..."
                    )
            if not follow or until() or all(export.series.finished for export in exports):
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        done = [export.close() for export in exports]
    return done
