"""Follows growing event logs, and computes the status of their runs.

A follower reads only files. The log has the events. The rate of a simulation is measured while its
log grows; a server's log has real times, from which its rate follows. The lock of the folder shows
whether the process that writes the log is alive, so the end of a process is noticed at once by a
follower that has seen it alive on the same machine.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fedraw.errors import BadInput
from fedraw.eventlog import live
from fedraw.eventlog.compare import distinct_names, identity
from fedraw.eventlog.live import Phase, RunDetail, RunStatus, SiteState, SiteStatus
from fedraw.eventlog.log_file import (
    Chain,
    Position,
    find_logs,
    is_cut_off,
    log_size,
    modified,
    require_one_file,
    verify_log,
)
from fedraw.eventlog.records import (
    ArrivalRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
)
from fedraw.eventlog.state import RunState
from fedraw.eventlog.summary import end_of_log
from fedraw.storage.lock import LOCK, is_locked

# A run may have stopped if its log has not grown for this many seconds. A server writes nothing
# while its sites train.
QUIET, SERVER_QUIET = 20.0, 600.0
# The rate covers this many last seconds, or this many last updates of a server.
RATE_WINDOW, UPDATES = 60.0, 20
# The number of gaps between two writes that are kept.
GAPS = 20
# Seconds after the last of several runs has finished, until no other run is expected to begin.
SETTLED = 5.0
# Bytes that are read at once, which take a few milliseconds.
PIECE = 1 << 18
# This many bytes at the beginning and before the current position must not change; otherwise the
# log was replaced.
HEAD, MARK = 1024, 64


class GrowingFile:
    """Reads the complete lines of a growing log, each line once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self.size = 0
        self.written = 0.0  # unix seconds
        self._pieces: list[bytes] = []  # of the last line, which is still incomplete
        self._head = b""
        self._mark = b""

    def read(self) -> list[bytes] | None:
        """Return the lines of the next piece, none at the end; None if the file was replaced."""
        self.written = modified(self.path)
        with self.path.open("rb") as file:
            self.size = file.seek(0, os.SEEK_END)
            if self.size < self.position or not self._continues(file):
                return None
            piece = file.read(PIECE)
        self.position += len(piece)
        self._head += piece[: HEAD - len(self._head)]
        self._mark = (self._mark + piece)[-MARK:]
        first, *others = piece.split(b"\n")
        self._pieces.append(first)
        if not others:
            return []
        lines = [b"".join(self._pieces), *others[:-1]]
        self._pieces = others[-1:]
        return lines

    @property
    def unread(self) -> int:
        """The number of bytes that are not read yet."""
        return max(0, self.size - self.position)

    @property
    def unfinished(self) -> bytes:
        """The last line, if it is incomplete."""
        return b"".join(self._pieces)

    @property
    def is_current(self) -> bool:
        """Whether the file has not changed since it was last read."""
        try:
            with self.path.open("rb") as file:
                return file.seek(0, os.SEEK_END) == self.size and self._continues(file)
        except OSError:
            return False

    def _continues(self, file: IO[bytes]) -> bool:
        file.seek(0)
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self.position - len(self._mark))
        return file.read(len(self._mark)) == self._mark


class _Pace:
    """The rate at which a log grows: by its own times on a server, else by those of its writes."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._grown: deque[tuple[float, int]] = deque()
        self._time: float | None = None  # of the last record of a server

    def rate(self, least: float) -> float | None:
        """Return the events per second; None if the log was followed for less than `least` s."""
        if len(self._grown) < 2:
            return None
        (begun, before), (ended, event) = self._grown[0], self._grown[-1]
        seconds = ended - begun
        return (event - before) / seconds if seconds > 0 and seconds >= least else None

    def grew(self, written: float, event: int) -> None:
        """Record that the log of a simulation has grown to this event."""
        if self._grown:
            before, known = self._grown[-1]
            if event == known:
                return
            gap = written - before
            if gap > self.patience(None):  # a pause does not count in the rate
                self._grown.clear()
            self._gaps.append(gap)
        self._grown.append((written, event))
        while len(self._grown) > 2 and self._grown[1][0] < written - RATE_WINDOW:
            self._grown.popleft()

    def observe(self, record: Record) -> None:
        """Add the next record of a server's log."""
        if isinstance(record, StartRecord):
            return
        if isinstance(record, RestartedRecord):
            self._time = None  # the gap before a restart is not part of the server's pace
            self._grown.clear()
        if self._time is not None:
            self._gaps.append(record.time - self._time)
        self._time = record.time
        if isinstance(record, ArrivalRecord | RejectedRecord):
            self._grown.append((record.time, record.event))
            if len(self._grown) > UPDATES:
                self._grown.popleft()

    def patience(self, server: StartRecord | None) -> float:
        """Return the seconds without a record after which a run, or a server, may have stopped."""
        if server is None:
            # The second longest gap, as the longest may be a pause until someone resumed the run.
            second = sorted(self._gaps)[-2] if len(self._gaps) > 1 else 0.0
            return max(QUIET, 3 * second)
        patience = max(SERVER_QUIET, 3 * max(self._gaps, default=0.0))
        # A server writes a note at the deadline of a training, so a longer silence is unusual.
        deadline = server.spec.get("server", {}).get("deadline")
        if len(self._gaps) < 5 and isinstance(deadline, int | float):
            patience = max(patience, deadline)
        return patience


class LogFollower:
    """Follows one log; every byte is read and parsed once, whatever the number of polls."""

    def __init__(self, log: Path, take: Callable[[Record], None] | None = None) -> None:
        self.folder = log.parent
        self.log = log
        self._take = take  # called with every record, when the state has it
        self._was_alive = False  # whether the process that writes the log was ever seen alive
        self._has_died = False
        self._reset()

    def _reset(self) -> None:
        self.state = RunState(bounded=True)  # after all records that were read
        self._file = GrowingFile(self.log)
        self._detail: tuple[int, RunDetail] | None = None  # and the bytes from which it is
        self._chain = Chain()
        self._checked: Position | None = None  # the end of a log that agrees with its summary
        self._pace = _Pace()

    def poll(self, seconds: float | None = None) -> bool:
        """Read appended records for at most this many seconds; return whether all are read."""
        require_one_file(self.log)
        until = None if seconds is None else time.monotonic() + seconds
        # Before reading, because a process writes the end record before it unlocks the folder.
        is_alive = not self.state.finished and self._is_locked()
        while True:
            try:
                lines = self._file.read()
            except OSError as problem:
                raise BadInput(
                    f"cannot read {self.log}: {problem.strerror}; name a readable log, or the "
                    "folder of a run"
                ) from None
            if lines is None:
                self.refuse_shortened()
                self._refuse_other_log()
                self._reset()
                continue
            for line in lines:
                self._observe_line(line)
            if not self._file.unread:
                if not self._chain.position.lines:
                    self.refuse_shortened()
                self._check_end()
            if self._file.unfinished and not is_cut_off(self._file.unfinished):
                self._refuse()
            if not self._file.unread:
                if not self._is_server:
                    self._pace.grew(self._file.written, self.state.events)
                self._has_died = self._was_alive and not is_alive
                self._was_alive |= is_alive
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def _refuse_other_log(self) -> None:
        """Refuse a log that was replaced, if somebody has taken its first records already."""
        if self._take is not None:
            raise BadInput(f"{self.log} was truncated or replaced; start again with the new log")

    def refuse_shortened(self) -> None:
        """Refuse a log that is shorter than at the last checkpoint, because it was rotated."""
        size = log_size(self.log)
        saved = self._saved_length()
        if size < saved:
            raise BadInput(
                f"{self.log} has {size} bytes, but at the last checkpoint it had {saved}: it was "
                "renamed, truncated or replaced; put the whole file back (for example from "
                "events.jsonl.1), exempt it from log rotation, and restart the run or server"
            )

    def _saved_length(self) -> int:
        """Return the length of the log at the last checkpoint; 0 without a checkpoint."""
        try:
            newest = max((self.folder / "checkpoint").glob("*[0-9]/manifest.json"))
            return int(json.loads(newest.read_text(encoding="utf-8"))["log"][0])
        except (OSError, ValueError, LookupError, TypeError):
            return 0

    def _check_end(self) -> None:
        """Refuse a log that does not agree with the summary.json in its folder."""
        if self._chain.position == self._checked:
            return
        try:
            end = end_of_log(self.log)
            if end is not None and end != self._chain.position:
                verify_log(self.log, end)  # raises an error with the reason
        except BadInput:
            if self._file.is_current:  # otherwise the run has just ended or was replaced
                raise
        else:
            self._checked = end

    def _observe_line(self, line: bytes) -> None:
        first = not self._chain.position.lines
        record = self._chain.decode(line + b"\n", self.log)
        if isinstance(record, StartRecord) != first:
            self._refuse()
        self.state.apply(record)
        if self._is_server:
            self._pace.observe(record)
        if self._take is not None:
            self._take(record)

    def _refuse(self) -> None:
        verify_log(self.log)  # raises an error with the reason, if there is another one
        line = max(1, self._chain.position.lines)
        raise BadInput(
            f"{self.log}, line {line} is not valid in an event log: the first record must be the "
            "only start record; name a log that fedraw has written"
        )

    @property
    def written(self) -> float:
        """The time at which the log last grew, in unix seconds."""
        return self._file.written

    @property
    def unread(self) -> int:
        """The number of bytes that are not read yet."""
        return self._file.unread

    @property
    def start(self) -> StartRecord | None:
        """The start record; None until it is read."""
        return self.state.start

    @property
    def _is_server(self) -> bool:
        return self.start is not None and self.start.is_server

    def status(self, now: float, name: str | None = None) -> RunStatus:
        """Return the status at `now`, in unix seconds; `name` replaces the method's name."""
        known, start = self.state, self.start
        quiet = max(0.0, now - self.written)
        phase = self._phase(quiet)
        rate = self._rate() if phase == "running" else None
        left = None
        if rate and known.limit is not None:
            left = max(0.0, (known.limit - known.events) / rate - quiet)
        return RunStatus(
            folder=self.folder,
            name=name or (start.name if start else self.folder.name),
            seed=start.seed if start else None,
            state=phase,
            event=known.events,
            events=known.limit,
            written=self.written,
            quiet=quiet,
            rate=rate,
            seconds_left=left,
            unread=self._file.unread,
            checkpoint=None if known.finished else self._checkpoint(),
            metrics=live.shown_metrics(known),
            is_server=self._is_server,
        )

    def detail(self) -> RunDetail:
        """Return the details of the run, computed again only if more of the log was read."""
        if self._detail is None or self._detail[0] != self._file.position:
            self._detail = self._file.position, live.detail(self.state)
        return self._detail[1]

    def log_time(self, now: float) -> float:
        """Return the log's time at `now`, in unix seconds; it advances while a server runs."""
        quiet = max(0.0, now - self.written)
        is_running = self._is_server and self._phase(quiet) in ("starting", "running")
        return self.state.time + (quiet if is_running else 0.0)

    def sites(self, now: float) -> list[SiteStatus]:
        """Return all clients that ever took part, at `now` in unix seconds."""
        return live.sites(self.state, self.log_time(now))

    def site_counts(self, now: float) -> dict[SiteState, int]:
        """Return the number of clients in each state, at `now` in unix seconds."""
        return live.site_counts(self.state, self.log_time(now))

    def _phase(self, quiet: float) -> Phase:
        if self.state.finished:
            return "finished"
        patience = self._pace.patience(self.start if self._is_server else None)
        # If the system does not show locks, only the silence counts.
        is_silent = quiet > patience and not self._file.unread and not self._is_locked()
        if self._has_died or is_silent:
            return "stopped"
        return "running" if self.state.events else "starting"

    def _is_locked(self) -> bool:
        return is_locked(self.folder / LOCK)

    def _rate(self) -> float | None:
        if self._is_server:
            return self._pace.rate(0.0)
        return None if self._file.unread else self._pace.rate(1.0)

    def _checkpoint(self) -> int | None:
        found = (path.name for path in (self.folder / "checkpoint").glob("*[0-9]"))
        return max((int(name) for name in found if name.isdigit()), default=None)


class RunsFollower:
    """Follows all runs at or below a folder, including runs that begin later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[Path, LogFollower] = {}
        self._names: dict[Path, str] = {}

    def poll(self, seconds: float | None = None) -> bool:
        """Read appended records, the latest run first; return whether all are read."""
        logs = find_logs(self._folder)
        for gone in self._runs.keys() - set(logs):
            self._runs[gone].refuse_shortened()
        self._runs = {log: self._runs.get(log) or LogFollower(log) for log in logs}
        until = None if seconds is None else time.monotonic() + seconds
        complete = True
        for run in sorted(self._runs.values(), key=lambda run: modified(run.log), reverse=True):
            # The first piece of a run is always read, because it has the run's name.
            left = None if until is None else max(0.0, until - time.monotonic())
            complete = run.poll(left) and complete
        self._name_runs()
        return complete

    @property
    def latest(self) -> LogFollower:
        """The run whose log was written last."""
        return max(self._runs.values(), key=lambda run: run.written)

    def is_over(self, now: float) -> bool:
        """Return whether all runs are finished and no other seed has begun shortly after."""
        alone = len(self._runs) == 1 and self._folder in {self.latest.folder, self.latest.log}
        settled = alone or now - self.latest.written > SETTLED
        return settled and all(run.state.finished for run in self._runs.values())

    def statuses(self, now: float) -> list[RunStatus]:
        """Return the status of all runs, in the order of their folders and seeds."""
        return [run.status(now, self._names.get(log)) for log, run in self._runs.items()]

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the status and details of all runs, as JSON."""
        runs = [
            {**asdict(run.status(now, self._names.get(log))), **asdict(run.detail())}
            for log, run in self._runs.items()
        ]
        return {"latest": str(self.latest.folder), "runs": [plain(run) for run in runs]}

    def _name_runs(self) -> None:
        started = {log: run.start for log, run in self._runs.items() if run.start is not None}
        if started.keys() != self._names.keys():
            self._names = run_names(started)


def run_names(started: Mapping[Path, StartRecord]) -> dict[Path, str]:
    """Return distinct names; runs of one method get their folder, or the settings that differ."""
    keys = {log: identity(start.name, start.spec) for log, start in started.items()}
    one_each = {keys[log]: (log, start) for log, start in started.items()}
    names = distinct_names(
        [start.name for _, start in one_each.values()],
        [start.spec for _, start in one_each.values()],
        [log.parent for log, _ in one_each.values()],
    )
    shown = dict(zip(one_each, names, strict=True))
    return {log: shown[key] for log, key in keys.items()}


def plain(value: Any, digits: int | None = None) -> Any:
    """Return a value as JSON: named tuples as objects, paths as text; `digits` rounds numbers."""
    if isinstance(value, float):
        return value if digits is None else round(value, digits)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict(), digits)
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in value]
    return value
