"""Follows event logs while they grow, and tells what they say so far.

Nothing is asked of the run itself. The log tells what happened. The rate is measured while the log
is followed; a server's log has real times and tells its rate by itself. The lock of the folder
tells whether the process that writes the log is alive.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.eventlog.compare import distinct_names, identity
from fedraw.eventlog.log_file import Chain, Position, find_logs, is_cut_off, read_log
from fedraw.eventlog.records import (
    ArrivalRecord,
    EvaluationRecord,
    JoinedRecord,
    LeftRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
)
from fedraw.eventlog.status import (
    BufferSlot,
    EvaluationPoint,
    Incident,
    LabelTrend,
    Restart,
    RunDetail,
    RunState,
    RunStatus,
    ServerHistory,
)
from fedraw.eventlog.summary import Changes, RunSummary, end_of_log
from fedraw.storage.lock import LOCK, is_locked

# A log that did not grow for this many seconds may belong to a run that has stopped. A server is
# quiet while its sites train.
QUIET, SERVER_QUIET = 20.0, 600.0
# The rate is that of this many last seconds.
RATE_WINDOW = 60.0
# What is kept of sequences without a bound: arrivals of one client, refusals, notes of each kind,
# gaps between two writes, points of a curve.
ARRIVALS, REFUSALS, NOTES, GAPS, CURVE = 64, 5, 5, 20, 256
SHOWN = ("GlobalAcc", "AvgRare")
# This many last evaluations are compared with as many before them.
TREND = 3
# A label falls if its recall drops by this many points.
FALL = 10.0
# A recall below this share of the mean is far below it.
FAR = 2 / 3
# After the last of several runs has finished, seconds until no other is expected to begin.
SETTLED = 5.0
# Bytes that are read at once; some milliseconds of work.
PIECE = 1 << 18
# This many bytes at the beginning and before the place reached must still be the same; otherwise
# the log was written anew.
HEAD, MARK = 1024, 64


class GrowingFile:
    """Reads the whole lines of a file that grows, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self.size = 0
        self.written = 0.0  # unix seconds
        self._pieces: list[bytes] = []  # of the last line, whose end has not been read yet
        self._head = b""
        self._mark = b""

    def read(self) -> list[bytes] | None:
        """The lines of the next piece, none at the end; None if the file was replaced."""
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            self.size, self.written = status.st_size, status.st_mtime
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
        """Bytes that are still to be read."""
        return max(0, self.size - self.position)

    @property
    def unfinished(self) -> bytes:
        """The last line, if its end has not been read yet."""
        return b"".join(self._pieces)

    @property
    def is_current(self) -> bool:
        """Whether the file has not changed since it was last read."""
        try:
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size == self.size and self._continues(file)
        except OSError:
            return False

    def _continues(self, file: IO[bytes]) -> bool:
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self.position - len(self._mark))
        return file.read(len(self._mark)) == self._mark


class ThinnedCurve:
    """The evaluations of a run from first to last, thinned out evenly when they become many."""

    def __init__(self) -> None:
        self.last: EvaluationPoint | None = None
        self._kept: list[EvaluationPoint] = []
        self._seen = 0
        self._stride = 1

    def add(self, point: EvaluationPoint) -> None:
        """Append a point."""
        self.last = point
        if self._seen % self._stride == 0:
            self._kept.append(point)
        self._seen += 1
        if len(self._kept) > CURVE:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def points(self) -> tuple[EvaluationPoint, ...]:
        """The points that were kept, and always the last one."""
        newest = [] if self.last is None or self._kept[-1] is self.last else [self.last]
        return (*self._kept, *newest)


class _ServerLog:
    """What the log of a real server tells besides updates, bounded by the number of sites."""

    def __init__(self) -> None:
        self._away: dict[ClientId, Incident] = {}
        self._restart: Restart | None = None
        self._notes = 0
        self._quarantined = 0
        self._last_notes: deque[Incident] = deque(maxlen=NOTES)
        self._last_quarantines: deque[Incident] = deque(maxlen=NOTES)
        self._time: float | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._arrived: deque[tuple[float, int]] = deque(maxlen=GAPS)

    def observe(self, record: Record) -> None:
        match record:
            case StartRecord():
                return
            case ArrivalRecord() | RejectedRecord():
                self._arrived.append((record.time, record.event))
            case JoinedRecord():
                self._away.pop(record.client, None)
            case LeftRecord():
                left = Incident(record.event, record.client, record.reason)
                self._away.pop(record.client, None)  # the newest one comes last
                self._away[record.client] = left
                if _is_quarantine(left):
                    self._quarantine(left)
            case NoteRecord():
                self._note(Incident(record.event, record.client, record.reason))
            case RestartedRecord():
                self._restart = Restart(record.event, record.gap, len(record.reasked))
                self._time = None  # the gap before a restart says nothing about the server's pace
                self._arrived.clear()
        if self._time is not None:
            self._gaps.append(record.time - self._time)
        self._time = record.time

    def _note(self, note: Incident) -> None:
        self._notes += 1
        if _is_quarantine(note):
            self._quarantine(note)
        else:
            self._last_notes.appendleft(note)

    def _quarantine(self, incident: Incident) -> None:
        self._quarantined += 1
        self._last_quarantines.appendleft(incident)

    def rate(self) -> float | None:
        """Updates per second, by the latest ones since the server was started."""
        if len(self._arrived) < 2:
            return None
        (begun, before), (ended, event) = self._arrived[0], self._arrived[-1]
        return (event - before) / (ended - begun) if ended > begun else None

    def patience(self, start: StartRecord) -> float:
        """Seconds without a record after which the server may have stopped.

        A server writes a note at the deadline of a training, so it is not quiet for longer.
        """
        usual = 3 * max(self._gaps, default=0.0)
        deadline = start.spec.get("server", {}).get("deadline", 0.0)
        return max(SERVER_QUIET, usual, deadline if len(self._gaps) < 5 else 0.0)

    def history(self, changes: Changes) -> ServerHistory:
        return ServerHistory(
            away=tuple(reversed(self._away.values())),
            changed=len(changes.clients),
            restarts=changes.restarts,
            last_restart=self._restart,
            notes=self._notes,
            quarantined=self._quarantined,
            last_notes=(*self._last_quarantines, *self._last_notes),
        )


def _is_quarantine(incident: Incident) -> bool:
    return "quarantine" in incident.reason.lower()


class LogFollower:
    """Follows one log. Every byte is read and parsed once, however often one looks."""

    def __init__(self, log: Path) -> None:
        self.folder = log.parent
        self.log = log
        self._reset()

    def _reset(self) -> None:
        self.summary = RunSummary()
        self._file = GrowingFile(self.log)
        self._chain = Chain()
        self._checked: Position | None = None  # the end of a log that fits its summary
        self._version = 0
        self._aggregated_at: int | None = None
        self._curve = ThinnedCurve()
        self._arrivals: dict[ClientId, deque[int]] = {}
        self._buffer: ArrivalRecord | None = None
        self._refusals: deque[Incident] = deque(maxlen=REFUSALS)
        self._server = _ServerLog()
        self._growth: deque[tuple[float, int]] = deque()  # when the log grew, and to which event
        self._gaps: deque[float] = deque(maxlen=GAPS)

    def look(self, seconds: float | None = None) -> bool:
        """Take in what was appended, for this many seconds at most; return whether that was all."""
        until = None if seconds is None else time.monotonic() + seconds
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
                self._reset()
                continue
            for line in lines:
                self._take_in(line)
            if not self._file.unread:
                if not self._chain.position.lines:
                    self.refuse_shortened()
                self._check_end()
            if self._file.unfinished and not is_cut_off(self._file.unfinished):
                self._refuse()
            if not self._file.unread:
                self._note_growth()
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def refuse_shortened(self) -> None:
        """Refuse a log that is shorter than at the last checkpoint: it was rotated."""
        size = self.log.stat().st_size if self.log.exists() else 0
        saved = self._saved_length()
        if size < saved:
            raise BadInput(
                f"{self.log} has {size} bytes, and at the last checkpoint it had {saved}: it was "
                "renamed, truncated or replaced; put the whole file back (for example from "
                "events.jsonl.1), exempt it from log rotation, and start what wrote it again"
            )

    def _saved_length(self) -> int:
        """How long the log was at the last checkpoint; 0 without a checkpoint."""
        try:
            newest = max((self.folder / "checkpoint").glob("*[0-9]/manifest.json"))
            return int(json.loads(newest.read_text(encoding="utf-8"))["log"][0])
        except (OSError, ValueError, LookupError, TypeError):
            return 0

    def _check_end(self) -> None:
        """Refuse a log that is not the one that the summary beside it was made of."""
        if self._chain.position == self._checked:
            return
        try:
            end = end_of_log(self.log)
            if end is not None and end != self._chain.position:
                for _ in read_log(self.log, until=end):  # says what is wrong
                    pass
        except BadInput:
            if self._file.is_current:  # else the run ended or was replaced at this moment
                raise
        else:
            self._checked = end

    def _take_in(self, line: bytes) -> None:
        first = not self._chain.position.lines
        record = self._chain.decode(line + b"\n", self.log)
        if isinstance(record, StartRecord) != first:
            self._refuse()
        self.summary.observe(record)
        self._server.observe(record)
        match record:
            case ArrivalRecord():
                self._version = record.version
                own = self._arrivals.setdefault(record.client, deque(maxlen=ARRIVALS))
                own.append(record.event)
                if record.buffer:  # a round's buffer is empty until the round is closed
                    self._buffer = record
                if record.aggregated:
                    self._aggregated_at = record.event
            case RejectedRecord():
                self._refusals.appendleft(Incident(record.event, record.client, record.reason))
            case EvaluationRecord():
                self._curve.add(EvaluationPoint(record.event, record.metrics, record.recall))
                del self.summary.evaluations[: -2 * TREND]

    def _refuse(self) -> None:
        for _ in read_log(self.log):  # finds what is wrong, and says it
            pass
        line = max(1, self._chain.position.lines)
        raise BadInput(
            f"{self.log}, line {line} does not fit an event log: the start record must be the "
            "first record, and there must be no other; name a log that fedraw has written"
        )

    def _note_growth(self) -> None:
        event, written = self.summary.events, self._file.written
        if self._growth:
            before, known = self._growth[-1]
            if event == known:
                return
            gap = written - before
            if gap > self._patience():  # the run paused, which is no part of its rate
                self._growth.clear()
            self._gaps.append(gap)
        self._growth.append((written, event))
        while len(self._growth) > 2 and self._growth[1][0] < written - RATE_WINDOW:
            self._growth.popleft()

    @property
    def written(self) -> float:
        """When the log last grew, in unix seconds."""
        return self._file.written

    @property
    def start(self) -> StartRecord | None:
        """The start record; None until it is read."""
        return self.summary.start

    def status(self, now: float, name: str | None = None) -> RunStatus:
        """The run in a line. `now` is in unix seconds; `name` replaces the method's name."""
        summary, start = self.summary, self.start
        quiet = max(0.0, now - self.written)
        state = self._state(quiet)
        rate = self._rate() if state == "running" else None
        wanted = start.events if start else None
        left = None
        if rate and wanted is not None:
            left = max(0.0, (wanted - summary.events) / rate - quiet)
        last = self._curve.last
        return RunStatus(
            folder=self.folder,
            name=name or (start.name if start else self.folder.name),
            seed=start.seed if start else None,
            state=state,
            event=summary.events,
            events=wanted,
            written=self.written,
            quiet=quiet,
            rate=rate,
            seconds_left=left,
            unread=self._file.unread,
            checkpoint=None if summary.finished else self._checkpoint(),
            metrics={key: last and last.metrics.get(key) for key in SHOWN},
            is_server=start is not None and start.is_server,
        )

    def _state(self, quiet: float) -> RunState:
        if self.summary.finished:
            return "finished"
        if quiet > self._patience() and not self._file.unread and not self._is_alive:
            return "stopped"
        return "running" if self.summary.events else "starting"

    @property
    def _is_alive(self) -> bool:
        """Whether a process holds the folder; False where that cannot be seen."""
        return is_locked(self.folder / LOCK)

    def _patience(self) -> float:
        """Seconds without a record after which the run may have stopped."""
        if self.start is not None and self.start.is_server:
            return self._server.patience(self.start)
        # The second longest gap, because the longest may be the time until someone resumed it.
        second = sorted(self._gaps)[-2] if len(self._gaps) > 1 else 0.0
        return max(QUIET, 3 * second)

    def _rate(self) -> float | None:
        """Events per second, as seen while following."""
        if self.start is not None and self.start.is_server:
            return self._server.rate()
        if self._file.unread or not self._growth:
            return None
        (begun, before), (ended, event) = self._growth[0], self._growth[-1]
        return (event - before) / (ended - begun) if ended - begun >= 1 else None

    def _checkpoint(self) -> int | None:
        found = (path.name for path in (self.folder / "checkpoint").glob("*[0-9]"))
        return max((int(name) for name in found if name.isdigit()), default=None)

    def detail(self) -> RunDetail:
        """What the log says so far, apart from the status."""
        summary = self.summary
        rare = tuple(summary.rare_clients)
        labels = tuple(sorted(self._labels(), key=lambda trend: trend.recall))
        strategy = self.start.spec.get("strategy", {}) if self.start else {}
        return RunDetail(
            curve=self._curve.points(),
            changes={
                key: _change([e.metrics.get(key) for e in summary.evaluations]) for key in SHOWN
            },
            mean_recall=_mean([trend.recall for trend in labels]),
            labels=labels,
            buffer=tuple(self._slots(set(rare))),
            capacity=strategy.get("buffer"),
            aggregated_at=self._aggregated_at,
            version=self._version,
            clients=len(summary.clients),
            rare_clients=rare,
            unheard=tuple(c for c in summary.members if c not in self._arrivals),
            participation=summary.dynamics(),
            rejected=summary.rejected,
            refusals=tuple(self._refusals),
            doubted=summary.doubted,
            inferred=self._inferred(),
            members=len(summary.members),
            history=self._server.history(summary.changes),
        )

    def _inferred(self) -> Mapping[str, Sequence[ClientId]]:
        evaluations = self.summary.evaluations
        found = evaluations[-1].inferred if evaluations else None
        return {} if found is None else found["holders"]

    def _labels(self) -> Iterator[LabelTrend]:
        last = self._curve.last.recall if self._curve.last else {}
        known = {label: recall for label, recall in last.items() if recall is not None}
        mean = _mean(list(known.values())) or 0.0
        rare = set(map(str, self.start.rare_labels)) if self.start else set()
        for label, recall in known.items():
            change = _change([e.recall.get(label) for e in self.summary.evaluations])
            falling = change is not None and change <= -FALL
            yield LabelTrend(label, label in rare, recall, change, recall < FAR * mean, falling)

    def _slots(self, rare: set[ClientId]) -> Iterator[BufferSlot]:
        """The buffer after the last arrival. A client's slots hold its latest updates, in order."""
        if self._buffer is None:
            return
        clients = self._buffer.buffer
        weights = self._buffer.weights or [None] * len(clients)
        after = Counter(clients)
        for client, weight in zip(clients, weights, strict=True):
            own = self._arrivals.get(client, ())
            known = after[client] <= len(own)
            age = self.summary.events - own[-after[client]] if known else None
            after[client] -= 1
            yield BufferSlot(client, weight, age, client in rare)


class RunsFollower:
    """Follows all runs at or below a folder, also those that begin later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[Path, LogFollower] = {}
        self._names: dict[Path, str] = {}

    def look(self, seconds: float | None = None) -> bool:
        """Take in what is new, the latest run first; return whether that was all."""
        logs = find_logs(self._folder)
        for gone in self._runs.keys() - set(logs):
            self._runs[gone].refuse_shortened()
        self._runs = {log: self._runs.get(log) or LogFollower(log) for log in logs}
        until = None if seconds is None else time.monotonic() + seconds
        complete = True
        for run in sorted(self._runs.values(), key=lambda run: _modified(run.log), reverse=True):
            # Even without time left, the first piece of a run is read: its name is in it.
            left = None if until is None else max(0.0, until - time.monotonic())
            complete = run.look(left) and complete
        self._name_runs()
        return complete

    @property
    def latest(self) -> LogFollower:
        """The run whose log was written last."""
        return max(self._runs.values(), key=lambda run: run.written)

    def is_over(self, now: float) -> bool:
        """Whether all runs are finished and no other seed has begun shortly after."""
        alone = len(self._runs) == 1 and self._folder in {self.latest.folder, self.latest.log}
        settled = alone or now - self.latest.written > SETTLED
        return settled and all(run.summary.finished for run in self._runs.values())

    def statuses(self, now: float) -> list[RunStatus]:
        """All runs, in the order of their folders and seeds."""
        return [run.status(now, self._names.get(log)) for log, run in self._runs.items()]

    def as_json(self, now: float) -> dict[str, Any]:
        """Everything that the screen shows, for every run."""
        runs = [
            {**asdict(run.status(now, self._names.get(log))), **asdict(run.detail())}
            for log, run in self._runs.items()
        ]
        return {"latest": str(self.latest.folder), "runs": [_plain(run) for run in runs]}

    def _name_runs(self) -> None:
        """Tell runs of one method apart by the settings in which they differ."""
        started = {log: run.start for log, run in self._runs.items() if run.start is not None}
        if started.keys() == self._names.keys():
            return
        keys = {log: identity(start.name, start.spec) for log, start in started.items()}
        one_each = {keys[log]: start for log, start in started.items()}
        names = distinct_names(
            [start.name for start in one_each.values()],
            [start.spec for start in one_each.values()],
        )
        shown = dict(zip(one_each, names, strict=True))
        self._names = {log: shown[key] for log, key in keys.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _change(found: Sequence[float | None]) -> float | None:
    """The mean of the last values minus that of as many before; None if there are too few."""
    values = [value for value in found if value is not None]
    span = min(TREND, len(values) // 2)
    if not span:
        return None
    before, after = values[-2 * span : -span], values[-span:]
    return (sum(after) - sum(before)) / span


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # just removed
        return 0.0


def _plain(value: Any) -> Any:
    """A value as JSON has it: named tuples as objects, paths as text."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
