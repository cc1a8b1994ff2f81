"""Reads event logs, also while they grow, and hands their series to a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LogTail, find_logs
from fedraw.export.scalars import RunSeries, Scalars
from fedraw.export.targets import Target

# Seconds between two looks at logs that grow.
EVERY = 1.0


class Exported(NamedTuple):
    """What was exported of one run."""

    log: Path
    name: str
    evaluations: int
    arrivals: int | None  # None if the target does not take arrivals
    finished: bool
    place: str  # where it went


class _RunExport:
    """One log on its way to a target, which is opened when the log has its first record."""

    def __init__(self, log: Path, make: Callable[[RunSeries, Path], Target], out: Path) -> None:
        self.series = RunSeries(log)
        self._tail = LogTail(log)
        self._make, self._out = make, out
        self._target: Target | None = None
        self._evaluations = self._arrivals = 0

    def look(self) -> None:
        """Export what was appended."""
        for record in self._tail.read():
            rows = list(self.series.observe(record))
            if self._target is None:
                self._target = self._make(self.series, self._out)
            for row in rows:
                if isinstance(row, Scalars):
                    self._evaluations += 1
                    self._target.scalars(row)
                elif self._target.takes_arrivals:
                    self._arrivals += 1
                    self._target.arrival(row)
        if self._target is not None:
            self._target.flush()

    def close(self) -> Exported:
        """End the export of this run."""
        series, target = self.series, self._target
        if target is not None:
            target.close()
        arrivals = self._arrivals if target is not None and target.takes_arrivals else None
        place = (target and target.place) or str(self._out)
        return Exported(
            series.log, series.name, self._evaluations, arrivals, series.finished, place
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
        make: Makes the target of one run, as the values of `TARGETS` do.
        out: The folder for what is written.
        follow: Go on until all runs are finished, or until `until` says so.
        until: Asked once a second while following.

    """
    logs = list(dict.fromkeys(log for folder in runs for log in find_logs(folder)))
    exports = [_RunExport(log, make, out) for log in logs]
    names: dict[str, Path] = {}
    try:
        while True:
            for export in exports:
                export.look()
                known = names.setdefault(export.series.name, export.series.log)
                if known != export.series.log:
                    raise BadInput(
                        f"{known.parent} and {export.series.log.parent} would both be written as "
                        f"{export.series.name}; export them one at a time, to another --out each"
                    )
            if not follow or until() or all(export.series.finished for export in exports):
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        pass
    finally:
        done = [export.close() for export in exports]
    return done
