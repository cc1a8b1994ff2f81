"""Runs as they happen: event logs read while they grow, and what they say so far.

Nothing is asked of the run itself. What is known comes from the log, when it was written from the
time stamp of its file, and whether a quiet server is alive from the lock that it holds.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedraw.core.types import ClientId
from fedraw.disk.event_log import Chain, Position, Record, read_log
from fedraw.disk.lock import LOCK, is_locked
from fedraw.errors import BadInput
from fedraw.experiments.lived import Lived
from fedraw.experiments.run_folder import ended_at
from fedraw.experiments.runner import PROGRESS_EVERY
from fedraw.experiments.status import Curve, Detail, LabelTrend, Point, Refusal, Slot, State, Status
from fedraw.experiments.summary import Summary
from fedraw.experiments.tail import Tail, modified

# A run that wrote nothing for this many seconds may have stopped; a slow one is given more.
QUIET = 20.0
# The rate is that of the last so many seconds.
RATE_WINDOW = 60.0
# Kept of what is unbounded: arrivals of one client, refusals (and notes), gaps between writes.
ARRIVALS, REFUSALS, REMEMBERED = 64, 5, 20
SHOWN = ("GlobalAcc", "AvgRare")
# The last so many evaluations are set against as many before them.
TREND = 3
# Points of recall.
FALL = 10.0
# Far below the mean is less than this share of it.
FAR = 2 / 3


class Follower:
    """One run. Every byte of its log is read and parsed once, however often one looks."""

    def __init__(self, log: Path) -> None:
        self.folder = log.parent
        self.log = log
        self._tail = Tail(log)
        self._resumed = False
        self._forget()

    def _forget(self) -> None:
        self.summary = Summary()
        self._lines = 0
        self._chain = Chain()
        self._checked: Position | None = None  # the end of a log that fits its summary
        self._version = 0
        self._aggregated_at: int | None = None
        self._curve = Curve()
        self._arrivals: dict[ClientId, deque[int]] = {}
        self._buffer: Record = {}
        self._refusals: deque[Refusal] = deque(maxlen=REFUSALS)
        self._life = Lived()
        self._grown: deque[tuple[float, int]] = deque()  # when the log grew, and to which event
        self._gaps: deque[float] = deque(maxlen=REMEMBERED)

    def look(self, seconds: float | None = None) -> bool:
        """Take in what was appended, for so many seconds at most; tell whether that was all."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                lines = self._tail.read()
            except OSError as problem:
                raise BadInput(f"cannot read {self.log}: {problem.strerror}") from None
            if lines is None:
                self.refuse_shortened()
                self._forget()
                self._resumed = True
                self._tail = Tail(self.log)
                continue
            for line in lines:
                self._take_in(line)
            if not self._tail.unread:
                if not self._lines:
                    self.refuse_shortened()
                self._check_end()
            if not self._tail.could_become_a_record:
                self._refuse()
            if not self._tail.unread:
                self._note_growth()
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def refuse_shortened(self) -> None:
        """Refuse a log that is shorter than it was at the last checkpoint: it was rotated."""
        size = self.log.stat().st_size if self.log.exists() else 0
        saved = self._saved_length()
        if size < saved:
            raise BadInput(
                f"{self.log} has {size} bytes, and at the last checkpoint it had {saved}: it was "
                "renamed, truncated or replaced; put the whole file back (for example from "
                "events.jsonl.1), exempt it from log rotation, and start what wrote it again"
            )

    def _saved_length(self) -> int:
        """How long the log was at the last checkpoint; 0 if there is none."""
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
            end = ended_at(self.log)
            if end is not None and end != self._chain.position:
                for _ in read_log(self.log, until=end):  # says what is wrong
                    pass
        except BadInput:
            if self._tail.is_current:  # else the run ended or was replaced in this moment
                raise
        else:
            self._checked = end

    def _take_in(self, line: bytes) -> None:
        self._lines += 1
        try:
            record = self._chain.record(line + b"\n", self.log)
            if (record["kind"] == "start") == (self._lines == 1):
                self.summary.observe(record)
                self._observe(record)
                return
        except (TypeError, KeyError, AttributeError):
            pass
        self._refuse()

    def _observe(self, record: Record) -> None:
        match record["kind"]:
            case "arrival":
                self._version = record.get("version", self._version)
                own = self._arrivals.setdefault(record["client"], deque(maxlen=ARRIVALS))
                own.append(record["event"])
                if record["buffer"]:  # a round's is empty until it is closed
                    self._buffer = record
                if record["aggregated"]:
                    self._aggregated_at = record["event"]
            case "rejected":
                self._refusals.appendleft(
                    Refusal(record["event"], record["client"], str(record["reason"]))
                )
            case "evaluation":
                point = Point(record["event"], record["metrics"], record["recall"])
                self._curve.add(point)
                del self.summary.evaluations[: -2 * TREND]
        self._life.observe(record)

    def _refuse(self) -> None:
        for _ in read_log(self.log):  # finds what is wrong, and says it
            pass
        line = max(1, self._lines)
        raise BadInput(f"{self.log}, line {line} does not fit an event log; did fedraw write it?")

    def _note_growth(self) -> None:
        event, written = self.summary.events, self._tail.written
        if self._grown:
            before, known = self._grown[-1]
            if event == known:
                return
            gap = written - before
            if gap > self._patience(self._rate()):
                self._grown.clear()
            self._gaps.append(gap)
        self._grown.append((written, event))
        while len(self._grown) > 2 and self._grown[1][0] < written - RATE_WINDOW:
            self._grown.popleft()

    @property
    def written(self) -> float:
        return self._tail.written

    @property
    def start(self) -> Record:
        return self.summary.start

    def status(self, now: float, name: str | None = None) -> Status:
        summary, quiet = self.summary, max(0.0, now - self.written)
        rate = self._rate()
        wanted = self.start.get("events")
        is_server = self._is_server
        state = self._state(quiet, rate)
        left = None
        if state == "running" and rate and wanted is not None:
            left = max(0.0, (wanted - summary.events) / rate - quiet)
        last = self._curve.last
        return Status(
            folder=self.folder,
            name=name or str(self.start.get("name") or self.folder.name),
            seed=self.start.get("seed"),
            state=state,
            event=summary.events,
            events=wanted,
            written=self.written,
            quiet=quiet,
            rate=rate if state == "running" else None,
            seconds_left=left,
            unread=self._tail.unread,
            checkpoint=None if summary.finished else self._checkpoint(),
            metrics={key: last and last.metrics.get(key) for key in SHOWN},
            is_server=is_server,
        )

    @property
    def _is_server(self) -> bool:
        """Whether this is no simulation: chance has no seed there."""
        return bool(self.start) and self.start.get("seed") is None

    def _state(self, quiet: float, rate: float | None) -> State:
        if self.summary.finished:
            return "finished"
        silent = quiet > self._patience(rate) and not self._tail.unread
        if silent and not self._waits:
            return "stopped"
        return "running" if self.summary.events else "starting"

    @property
    def _waits(self) -> bool:
        """Whether this is a server, alive, whose sites train for long or have yet to come."""
        held = any(is_locked(path) for path in (self.folder / LOCK, self.log))
        return held and (self._is_server or not self.start)

    def _patience(self, rate: float | None) -> float:
        """A run shows what it wrote only now and then: a slow one is quiet for long."""
        if self._is_server:
            return self._life.patience(self.start)
        usual = PROGRESS_EVERY / rate if rate else 0.0
        # The second longest gap: the longest may be the time until someone resumed it.
        return max(QUIET, 3 * usual, *(3 * gap for gap in sorted(self._gaps)[-2:-1]))

    def _rate(self) -> float | None:
        """Events a second: as seen while looking on; before that, as other files tell.

        The log of a real server has real times, and tells by itself.
        """
        if self._is_server:
            return self._life.rate()
        if self._tail.unread or not self._grown:
            return None
        (begun, before), (ended, event) = self._grown[0], self._grown[-1]
        if ended - begun >= 1:
            return (event - before) / (ended - begun)
        if self._resumed:
            return None
        # A pause in between makes a run look slower than it is, so the faster one is right.
        told = ((event - before) / (ended - begun) for begun, before in self._earlier(ended))
        return max(told, default=None) or None

    def _earlier(self, ended: float) -> Iterator[tuple[float, int]]:
        """When the run was at an event: at its last checkpoint, and at first."""
        files = {"checkpoint": self._checkpoint(), "spec.toml": 0}
        for name, event in files.items():
            begun = modified(self.folder / name)
            if event is not None and 0 < begun <= ended - 1:
                yield begun, event

    def _checkpoint(self) -> int | None:
        found = (path.name for path in (self.folder / "checkpoint").glob("*[0-9]"))
        return max((int(name) for name in found if name.isdigit()), default=None)

    def detail(self) -> Detail:
        summary = self.summary
        rare = tuple(summary.rare_clients)
        labels = tuple(sorted(self._labels(), key=lambda trend: trend.recall))
        strategy = self.start.get("spec", {}).get("strategy", {})
        return Detail(
            curve=self._curve.points(),
            changes={key: self._change("metrics", key) for key in SHOWN},
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
            life=self._life.so_far(summary.changes),
        )

    def _inferred(self) -> Mapping[str, Sequence[ClientId]]:
        evaluations = self.summary.evaluations
        told = evaluations[-1].get("inferred", {}) if evaluations else {}
        holders: Mapping[str, Sequence[ClientId]] = told.get("holders", {})
        return holders

    def _labels(self) -> Iterator[LabelTrend]:
        last = self._curve.last.recall if self._curve.last else {}
        known = {label: recall for label, recall in last.items() if recall is not None}
        mean = _mean(list(known.values())) or 0.0
        rare = set(map(str, self.start.get("rare_labels", ())))
        for label, recall in known.items():
            change = self._change("recall", label)
            falling = change is not None and change <= -FALL
            yield LabelTrend(label, label in rare, recall, change, recall < FAR * mean, falling)

    def _change(self, table: str, key: str) -> float | None:
        found = [evaluation[table].get(key) for evaluation in self.summary.evaluations]
        values: list[float] = [value for value in found if value is not None]
        span = min(TREND, len(values) // 2)
        if not span:
            return None
        before, after = values[-2 * span : -span], values[-span:]
        return (sum(after) - sum(before)) / span

    def _slots(self, rare: set[ClientId]) -> Iterator[Slot]:
        """A client's slots hold its latest arrivals, in their order."""
        clients: Sequence[ClientId] = self._buffer.get("buffer", ())
        weights: Sequence[float | None] = self._buffer.get("weights") or [None] * len(clients)
        after = Counter(clients)
        for client, weight in zip(clients, weights, strict=True):
            own = self._arrivals.get(client, ())
            known = after[client] <= len(own)
            age = self.summary.events - own[-after[client]] if known else None
            after[client] -= 1
            yield Slot(client, weight, age, client in rare)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
