"""Follows the event logs of several folders, even if files are moved or damaged.

A folder may appear later. If a log is truncated, replaced, damaged or of another version, its run
is shown with the reason, the other runs are not affected, and the log is read again when it
changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedraw.core.text import counted, one_line, several
from fedraw.errors import BadInput
from fedraw.eventlog.follow import LogFollower, run_names
from fedraw.eventlog.live import RunDetail, RunStatus, SiteState, SiteStatus
from fedraw.eventlog.log_file import LOG, find_logs, modified
from fedraw.eventlog.records import StartRecord

LOGGER = logging.getLogger("fedraw.dashboard")

# Seconds between two polls of the logs, and between two searches for new logs.
POLL_SECONDS, SEARCH_SECONDS = 1.0, 5.0
# Seconds for which a poll reads logs before the page shows what was read.
READ_SECONDS = 0.3
# A longer name is replaced by the method and the folder.
MAX_NAME_LENGTH = 60
# The largest number of runs; of more runs, those that were written last are followed.
MAX_RUNS = 200


@dataclass(eq=False)
class WatchedRun:
    """One log; `problem` says why it cannot be read, if it cannot."""

    log: Path
    follower: LogFollower
    problem: str | None = None
    complete: bool = False
    stamp: tuple[int, ...] | None = None  # the version of the file that cannot be read

    @property
    def id(self) -> str:
        """A short identifier for URLs."""
        return hashlib.blake2b(str(self.log).encode(errors="replace"), digest_size=6).hexdigest()

    def poll(self, seconds: float) -> bool:
        """Read appended records for at most `seconds`; return whether none is left."""
        if self.problem is not None:
            if self.stamp == _stamp(self.log):
                return True
            self.follower, self.problem, self.complete = LogFollower(self.log), None, False
        try:
            self.complete = self.follower.poll(seconds)
        except BadInput as problem:
            self._fail(str(problem))
        except Exception as problem:  # a forged log must not affect other runs
            LOGGER.exception("cannot follow %s", self.log)
            self._fail(f"cannot follow {self.log}: {type(problem).__name__} {problem}")
        return self.complete or self.problem is not None

    def _fail(self, reason: str) -> None:
        """Record the reason, which is shown until the file changes."""
        self.problem, self.stamp = one_line(reason), _stamp(self.log)


@dataclass(frozen=True)
class RunView:
    """The state of one run at one moment."""

    id: str
    method: str  # unlike the name in the status, the method does not depend on other runs
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
        self.polls = 0  # the number of polls so far
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def on_poll(self, listener: Callable[[], None]) -> None:
        """Call the listener in the watcher's thread after every poll."""
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
                complete = self.poll(READ_SECONDS)
                for listener in self._listeners:
                    listener()
            except Exception:  # for example, a folder disappears during the search
                LOGGER.exception("polling the logs failed; trying again")
            self._stop.wait(POLL_SECONDS if complete else 0.02)

    def poll(self, seconds: float = 3600.0) -> bool:
        """Read new records of all logs for at most `seconds`; return whether none is left."""
        with self._lock:
            self._search()
        until = time.monotonic() + seconds
        complete = True
        for run in sorted(self._runs.values(), key=lambda run: -run.follower.written):
            with self._lock:  # held for one run at a time, so that requests do not wait long
                complete = run.poll(max(0.0, until - time.monotonic())) and complete
        with self._lock:
            self.polls += 1
            starts = {log: run.follower.start for log, run in self._runs.items()}
            known = {log: start for log, start in starts.items() if start is not None}
            if known.keys() != self._names.keys():
                self._names = {
                    log: _short_name(n, known[log], log) for log, n in run_names(known).items()
                }
        return complete

    def _search(self) -> None:
        if self._runs and self._clock() < self._next_search:
            return
        self._next_search = self._clock() + SEARCH_SECONDS
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
                if folder.is_dir():  # one of several runs may be incomplete
                    logs.update(dict.fromkeys(sorted(folder.rglob(LOG))))
        logs.update(dict.fromkeys(self._runs))  # a log that disappeared is still shown
        newest = sorted(logs, key=modified, reverse=True)[:MAX_RUNS]
        if len(newest) < len(logs):
            rest = [str(log.parent) for log in logs if log not in set(newest)]
            self._problems.append(
                f"{counted(len(rest), 'run')} not shown, because only the {MAX_RUNS} that were "
                f"written last are: {several(rest)}; give fewer folders"
            )
        kept = set(newest)
        self._runs = {
            log: self._runs.get(log) or WatchedRun(log, LogFollower(log))
            for log in logs
            if log in kept
        }

    @property
    def problems(self) -> list[str]:
        """The problems of the folders; problems of single logs are in the views."""
        with self._lock:
            return list(self._problems)

    @property
    def loading(self) -> str | None:
        """What the page waits for; None if every log is read to its end."""
        with self._lock:
            runs = self._runs.values()
            read = sum(run.complete or run.problem is not None for run in runs)
            if not self.polls:
                return "Loading: the folders are searched for runs."
            if read == len(runs):
                return None
            return f"Loading: {read} of {counted(len(runs), 'run')} read to the end."

    @property
    def is_complete(self) -> bool:
        """Whether every log is read to its end."""
        with self._lock:
            return all(run.complete or run.problem for run in self._runs.values())

    def views(self, *, sites: bool = False) -> list[RunView]:
        """Return all runs in the order of their folders and seeds.

        Without `sites`, the views have no list of sites.
        """
        with self._lock:
            return [self._view(run, sites) for run in self._runs.values()]

    def view(self, run_id: str) -> RunView | None:
        """Return the run with this id; None if there is none."""
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
            detail=follower.detail(),
            sites=follower.sites(now) if sites else (),
            site_counts=follower.site_counts(now),
            time=follower.state.time,
            log_time=follower.log_time(now),
            problem=run.problem,
            rare_labels=tuple(map(str, start.rare_labels)) if start else (),
        )


def _short_name(name: str, start: StartRecord, log: Path) -> str:
    """Return the name; if it is too long, the method and the folder."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    folder = log.parent if start.is_server else log.parent.parent
    return f"{start.name} ({folder.name})"


def _stamp(log: Path) -> tuple[int, ...] | None:
    try:
        found = [log.stat(), log.parent.stat()]  # joining its files removes some of the folder
    except OSError:
        return None
    return tuple(n for one in found for n in (one.st_ino, one.st_size, one.st_mtime_ns)) or None
