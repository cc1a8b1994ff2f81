"""Follows the event logs of several folders, whatever happens to the files.

A folder may appear later. A log may be truncated, replaced, damaged or of another version: its run
is then shown with the reason, the others go on, and the log is read anew when it changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedraw.core.text import one_line
from fedraw.errors import BadInput
from fedraw.eventlog.follow import LogFollower, run_names
from fedraw.eventlog.log_file import LOG, find_logs
from fedraw.eventlog.records import StartRecord
from fedraw.eventlog.segments import modified, parts_of
from fedraw.eventlog.sites import SiteState, SiteStatus
from fedraw.eventlog.status import RunDetail, RunStatus

LOGGER = logging.getLogger("fedraw.dashboard")

# Seconds between two looks at the logs, and between two searches for new ones.
EVERY, SEARCH_EVERY = 1.0, 5.0
# Logs are read for at most so many seconds before what was read is shown.
READ_SECONDS = 0.3
# A log with more bytes to read is skimmed first.
LONG = 8 << 20
# A longer name is replaced by the method and the folder.
LONGEST_NAME = 60
# So many runs are followed, those that were written last.
MOST_RUNS = 200


@dataclass(eq=False)
class WatchedRun:
    """One log, and why it cannot be read, if it cannot."""

    log: Path
    follower: LogFollower
    problem: str | None = None
    complete: bool = False
    stamp: tuple[int, ...] | None = None  # of the file that could not be read
    _known: tuple[tuple[int, bool], RunDetail] | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """A short name for addresses."""
        return hashlib.blake2b(str(self.log).encode(errors="replace"), digest_size=6).hexdigest()

    def detail(self) -> RunDetail:
        """What the log says so far, worked out again only if more of it was read."""
        now = (self.follower.read, self.complete)
        if self._known is None or self._known[0] != now:
            self._known = (now, self.follower.detail())
        return self._known[1]

    def look(self, seconds: float) -> bool:
        """Take in what was appended; return whether that was all."""
        if self.problem is not None:
            if self.stamp == _stamp(self.log):
                return True
            self.follower, self.problem, self.complete = LogFollower(self.log), None, False
        first = not self.complete and self.follower.start is None
        try:
            if first and not self.follower.poll(0.0) and self.follower.unread > LONG:
                self.follower.preview()
            self.complete = self.follower.poll(seconds)
        except BadInput as problem:
            self._give_up(str(problem))
        except Exception as problem:  # a forged log must not end the others
            LOGGER.exception("cannot follow %s", self.log)
            self._give_up(f"cannot follow {self.log}: {type(problem).__name__} {problem}")
        return self.complete or self.problem is not None

    def _give_up(self, reason: str) -> None:
        """Show the reason until the file changes."""
        self.problem, self.stamp = one_line(reason), _stamp(self.log)


@dataclass(frozen=True)
class RunView:
    """What is known about one run at one moment."""

    id: str
    method: str  # unlike the name in the status, it does not depend on the other runs
    status: RunStatus
    detail: RunDetail
    sites: Sequence[SiteStatus]
    site_counts: dict[SiteState, int]
    time: float  # of the last record, in the log's time
    log_time: float  # the log's time now
    problem: str | None
    rare_labels: Sequence[str]


class Watcher:
    """Follows all runs at or below some folders; every method may be called from any thread."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.time) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[Path, WatchedRun] = {}
        self._names: dict[Path, str] = {}
        self._problems: list[str] = []
        self._next_search = 0.0
        self._listeners: list[Callable[[], None]] = []
        self.looks = 0  # so often the logs were looked at
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def on_look(self, listener: Callable[[], None]) -> None:
        """Call the listener in the watcher's thread after every look."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Follow the logs in a thread until `stop`."""
        self._thread = threading.Thread(target=self._follow, name="fedraw-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _follow(self) -> None:
        while not self._stop.is_set():
            complete = True
            try:
                complete = self.look(READ_SECONDS)
                for listener in self._listeners:
                    listener()
            except Exception:  # such as a folder that disappears while it is searched
                LOGGER.exception("a look at the logs failed; trying again")
            self._stop.wait(EVERY if complete else 0.02)

    def look(self, seconds: float = 3600.0) -> bool:
        """Take in what is new, for so many seconds at most; return whether that was all."""
        with self._lock:
            self._search()
        until = time.monotonic() + seconds
        complete = True
        for run in sorted(self._runs.values(), key=lambda run: -run.follower.written):
            with self._lock:  # held for one run at a time, so that requests are not kept waiting
                complete = run.look(max(0.0, until - time.monotonic())) and complete
        with self._lock:
            self.looks += 1
            starts = {log: run.follower.start for log, run in self._runs.items()}
            known = {log: start for log, start in starts.items() if start is not None}
            if known.keys() != self._names.keys():
                self._names = {
                    log: _short(n, known[log], log) for log, n in run_names(known).items()
                }
        return complete

    def _search(self) -> None:
        if self._runs and self._clock() < self._next_search:
            return
        self._next_search = self._clock() + SEARCH_EVERY
        self._problems = []
        logs: dict[Path, None] = {}
        for folder in self._folders:
            if not folder.exists():
                self._problems.append(f"waiting for {folder}, which does not exist yet")
                continue
            try:
                logs.update(dict.fromkeys(find_logs(folder)))
            except BadInput as problem:
                self._problems.append(one_line(str(problem)))
                if folder.is_dir():  # one run of several may be incomplete
                    logs.update(dict.fromkeys(sorted(folder.rglob(LOG))))
        logs.update(dict.fromkeys(self._runs))  # a log that has gone is told, not forgotten
        newest = sorted(logs, key=modified, reverse=True)[:MOST_RUNS]
        if len(newest) < len(logs):
            self._problems.append(
                f"{len(logs) - len(newest)} more runs are not shown; name fewer folders"
            )
        kept = set(newest)
        self._runs = {
            log: self._runs.get(log) or WatchedRun(log, LogFollower(log))
            for log in logs
            if log in kept
        }

    @property
    def problems(self) -> list[str]:
        """What is wrong with the folders, apart from single logs."""
        with self._lock:
            return list(self._problems)

    @property
    def is_complete(self) -> bool:
        """Whether every log was read to its end."""
        with self._lock:
            return all(run.complete or run.problem for run in self._runs.values())

    def views(self, *, sites: bool = False) -> list[RunView]:
        """All runs, in the order of their folders and seeds; without `sites`, only their number."""
        with self._lock:
            return [self._view(run, sites) for run in self._runs.values()]

    def view(self, run_id: str) -> RunView | None:
        """One run; None if there is none of this id."""
        with self._lock:
            found = next((run for run in self._runs.values() if run.id == run_id), None)
            return None if found is None else self._view(found, sites=True)

    def _view(self, run: WatchedRun, sites: bool) -> RunView:
        now, follower = self._clock(), run.follower
        start = follower.start
        return RunView(
            id=run.id,
            method=start.name if start else "",
            status=follower.status(now, self._names.get(run.log)),
            detail=run.detail(),
            sites=follower.sites(now) if sites else (),
            site_counts=follower.site_counts(now),
            time=follower.shown.time,
            log_time=follower.log_time(now),
            problem=run.problem,
            rare_labels=tuple(map(str, start.rare_labels)) if start else (),
        )


def _short(name: str, start: StartRecord, log: Path) -> str:
    """The name, or the method and the folder if runs differ in too much to be named by it."""
    if len(name) <= LONGEST_NAME:
        return name
    folder = log.parent if start.is_server else log.parent.parent
    return f"{start.name} ({folder.name})"


def _stamp(log: Path) -> tuple[int, ...] | None:
    try:
        found = [path.stat() for path, _ in parts_of(log)]
    except OSError:
        return None
    return tuple(n for own in found for n in (own.st_ino, own.st_size, own.st_mtime_ns)) or None
