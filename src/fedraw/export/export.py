"""Reads event logs, also while they grow, and writes their series to a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.log_file import find_logs
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord, Record, StartRecord
from fedraw.export.scalars import ARRIVAL, scalars
from fedraw.export.targets import Target

# Seconds between two polls of growing logs.
POLL_SECONDS = 1.0


class RunExport:
    """The export of one log to a target, which is opened when the log has its first record."""

    def __init__(self, log: Path, make: Callable[[str, Path], Target], out: Path) -> None:
        self.log, self.name = log, log.parent.name
        self.evaluations = 0
        self.arrivals: int | None = None  # None if the target does not accept arrivals
        self._follower = LogFollower(log, self._export)
        self._make, self._out = make, out
        self._target: Target | None = None

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self._follower.state.finished

    def poll(self) -> None:
        """Export the records that were appended."""
        self._follower.poll()
        if self._target is not None:
            self._target.flush()

    def _export(self, record: Record) -> None:
        if self._target is None:
            self._target = self._open(record)
        if isinstance(record, EvaluationRecord):
            self.evaluations += 1
            self._target.scalars(scalars(self._follower.state, record))
        elif isinstance(record, ArrivalRecord) and self.arrivals is not None:
            self.arrivals += 1
            self._target.arrival({name: getattr(record, name) for name in ARRIVAL})

    def _open(self, first: Record) -> Target:
        above = self.log.parent.parent.name
        if isinstance(first, StartRecord) and first.seed is not None and above:
            self.name = f"{above}-{self.name}"
        target = self._make(self.name, self._out)
        self.arrivals = 0 if target.accepts_arrivals else None
        return target

    def close(self) -> None:
        """End the export of this run."""
        if self._target is not None:
            self._target.close()


def export_runs(
    runs: Sequence[Path],
    make: Callable[[str, Path], Target],
    out: Path,
    *,
    follow: bool = False,
) -> list[RunExport]:
    """Export all runs at or below these folders.

    Args:
        runs: Folders with event logs.
        make: Makes the target of one run; one of the values of `TARGETS`.
        out: The folder for the exported files.
        follow: Continue until all runs are finished, or until Ctrl-C is pressed.

    """
    logs = list(dict.fromkeys(log for folder in runs for log in find_logs(folder)))
    exports = [RunExport(log, make, out) for log in logs]
    names: dict[str, Path] = {}
    try:
        while True:
            for export in exports:
                export.poll()
                known = names.setdefault(export.name, export.log)
                if known != export.log:
                    raise BadInput(
                        f"{known.parent} and {export.log.parent} would both be written as "
                        f"{export.name}; export each of them to another out=..."
                    )
            if not follow or all(export.finished for export in exports):
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        for export in exports:
            export.close()
    return exports
