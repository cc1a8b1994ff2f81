"""What a federation must not lose: the strategy's state, who takes part, what was accepted.

A change of members is in the log before it takes effect, an update in the journal: that is when it
is accepted. So the state is always the last snapshot and what the log and the journal have since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedraw.analysis.inputs import rare_labels_of
from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.core.witness import Witness
from fedraw.disk.event_log import Position, Record, doubt_record
from fedraw.errors import BadInput, RefusedUpdate, nearest
from fedraw.server.admission import NORMS
from fedraw.server.journal import Flight, Journal
from fedraw.server.log import ServerLog
from fedraw.server.records import arrival_record, scores_of, scores_record, start_record
from fedraw.server.snapshots import Book, Snapshots
from fedraw.strategies.strategy import (
    Arrived,
    Declared,
    Joined,
    Left,
    Receivers,
    State,
    Strategy,
    news,
)

LOGGER = logging.getLogger("fedraw.server")


@dataclass(frozen=True)
class Identity:
    """What this server is: written to the log, and compared when it is started again."""

    strategy: Mapping[str, Any]  # name and settings
    settings: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """One folder of one federation."""

    def __init__(self, folder: Path, strategy: Strategy[Any], identity: Identity) -> None:
        self.folder = folder
        self.identity = identity
        self.book = Book()
        self.log = ServerLog(folder / "events.jsonl")
        self.journal = Journal(folder / "updates")
        self._snapshots = Snapshots(folder / "checkpoint", self.journal, identity.strategy)
        self._strategy = strategy
        self._state: State | None = None

    @property
    def begun(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("training has not begun")
        return self._state

    def time(self, now: float) -> float:
        """Seconds since training began, as the log counts; 0 before."""
        return round(now - self.book.epoch, 3) if self.begun else 0.0

    def begin(
        self,
        model: Vector,
        counts: Mapping[str, dict[str, int]],
        nodes: Mapping[str, int],
        rare: tuple[str, ...],
        now: float,
    ) -> None:
        """Found the federation; nothing counts before its first snapshot is on disk."""
        table = LabelTable.from_counts(counts)
        state, receivers = self._strategy.start(model, table)
        labels, rare = _labels_of(state, table, rare)
        self.log.clear()
        known = self.identity
        start = start_record(known.strategy, known.settings, labels, rare, **known.facts)
        self.log.commit({**start, "epoch": now})
        for site, own in counts.items():
            self.log.commit(self._member("joined", site, 0.0, counts=own, node=nodes[site]))
        self.book = Book(now, nodes=dict(nodes), rare_labels=list(rare))
        self.book.counts = {site: dict(own) for site, own in counts.items()}
        self._owe(receivers)
        self._snapshots.write(state, self.book, self.log.to_disk(), 0.0)
        self._state = state

    def join(self, site: str, counts: dict[str, int], node: int, now: float) -> None:
        record = self._member("joined", site, self.time(now), counts=counts, node=node)
        self._change(record)

    def declare(self, site: str, counts: dict[str, int], now: float) -> None:
        record = self._member("declared", site, self.time(now), counts=counts, reason="new counts")
        self._change(record)

    def leave(self, site: str, reason: str, now: float, until: float | None = None) -> None:
        """`until`: when a site in quarantine may come back, in unix seconds."""
        record = self._member("left", site, self.time(now), reason=reason)
        self._change(record if until is None else {**record, "until": until})

    def accept(self, update: Update, flight: Flight) -> str | None:
        """Journal the update, then act on it; the reason if the strategy refuses it after all."""
        event = self.book.event + 1
        self.journal.write(event, update, flight)
        record = self.arrive(event, update, flight)
        self.log.note(record)
        self._tell_doubts(flight.time)
        return str(record["reason"]) if record["kind"] == "rejected" else None

    def reject(self, site: str, reason: str, start_time: float, now: float) -> None:
        self.book.event += 1
        self.log.note(_rejected(self.book.event, self.time(now), site, start_time, reason))

    def note(self, reason: str, now: float, site: str | None = None) -> None:
        """For the operator; before training begins there is no event log to write it to."""
        if not self.begun:
            LOGGER.warning("%s%s", "" if site is None else f"{site}: ", reason)
        else:
            named = {} if site is None else {"client": site}
            stamp = {"event": self.book.event, "time": self.time(now)}
            self.log.note({"kind": "note", **stamp, **named, "reason": reason})

    def end(self, reason: str, now: float) -> None:
        stamp = {"event": self.book.event, "time": self.time(now)}
        self.log.commit({"kind": "end", **stamp, "reason": reason})
        self.book.ended = reason

    def snapshot(self, now: float) -> None:
        """An OSError leaves the snapshots there are."""
        self._snapshots.write(self.state, self.book, self.log.to_disk(), self.time(now))

    def recover(self, state: type[State], model_size: int, now: float) -> bool:
        """Go on where the folder's federation was; False if there is none."""
        found = self._snapshots.read(state, model_size)
        if found is None:
            return False
        self._state, self.book = found.state, found.book
        last = self._replay(found.log)
        told = {"damaged": list(found.damaged)} if found.damaged else {}
        stamp = {"event": self.book.event, "time": self.time(now)}
        gap, asked = round(self.time(now) - last, 3), list(self.book.owed)
        if self.book.ended is None:
            self.log.note({"kind": "restarted", **stamp, "gap": gap, "reasked": asked, **told})
        else:
            LOGGER.warning(
                "this federation has ended (%s), and other limits do not open it again; set "
                "another folder to train anew",
                self.book.ended,
            )
        return True

    def _replay(self, position: Position) -> float:
        """Do again what the log tells since the snapshot; return the time of its last record."""
        last = self.book.clock
        for record in self.log.verify(position):
            last = record.get("time", last)
            match record["kind"]:
                case "joined" | "declared" | "left":
                    self._member_changed(record)
                case "arrival":
                    self.arrive(record["event"], *self.journal.read(record["event"]))
                    news(self.state)  # is in the log already
                case "rejected":
                    self.book.event = record["event"]
                case "end":
                    self.book.ended = record["reason"]
        # Accepted, but the server was gone before the log had it.
        for event in self.journal.events():
            if event > self.book.event:
                update, flight = self.journal.read(event)
                self.log.note(self.arrive(event, update, flight))
                self._tell_doubts(flight.time)
                last = flight.time
        return last

    def arrive(self, event: int, update: Update, flight: Flight) -> Record:
        """Let the strategy have the update; the record of what that did."""
        book, site, before = self.book, str(update.client), self.state.version
        book.event = event
        try:
            self._state, receivers = self._strategy.step(self.state, Arrived(update))
        except RefusedUpdate as refusal:
            self.journal.drop(event)
            return _rejected(event, flight.time, site, flight.start_time, str(refusal))
        book.accepted += 1
        book.norms = [*book.norms, flight.norm][-NORMS:]
        book.owed.pop(site, None)
        self._owe(receivers)
        return arrival_record(event, update, flight, before, self.state)

    def _tell_doubts(self, time: float) -> None:
        for doubt in news(self.state):
            self.log.note(doubt_record(doubt, self.book.event, time))

    def _change(self, record: Record) -> None:
        """On disk first; then it takes effect, and the log tells what it did to the scores."""
        self.log.commit(record)
        site = str(record["client"])
        before = scores_of(self.state, site)
        self._member_changed(record)
        after = scores_of(self.state, site)
        cause = f"{site} {record['kind']}"
        self.log.note(scores_record(record["event"], record["time"], cause, before, after))

    def _member_changed(self, record: Record) -> None:
        book, site = self.book, str(record["client"])
        counts = record.get("counts", {})
        event: Joined | Declared | Left
        book.quarantined.pop(site, None)
        match record["kind"]:
            case "joined":
                event = Joined(site, counts)
                book.nodes.setdefault(site, record["node"])
            case "declared":
                event = Declared(site, counts)
            case _:
                event = Left(site)
                del book.counts[site]
                book.owed.pop(site, None)
                if "until" in record:
                    book.quarantined[site] = record["until"]
        if counts:
            book.counts[site] = dict(counts)
        self._state, receivers = self._strategy.step(self.state, event)
        self._owe(receivers)

    def _owe(self, receivers: Receivers) -> None:
        self.book.owed.update(dict.fromkeys(str(site) for site in receivers))

    def _member(self, kind: str, site: str, time: float, **more: Any) -> Record:
        return {"kind": kind, "event": self.book.event, "time": time, "client": site, **more}


def _labels_of(
    state: State, table: LabelTable, rare: tuple[str, ...]
) -> tuple[list[str], tuple[str, ...]]:
    """All labels, and those that metrics call rare; the model's own where sites tell none."""
    witness: Witness | None = getattr(state, "witness", None)
    if witness is None or witness.mode != "inferred":
        told = [str(label) for label in table.labels]
        return told, tuple(str(label) for label in rare_labels_of(rare or None, table))
    outputs = [str(label) for label in witness.classes]
    for label in rare:
        if label not in outputs:
            raise BadInput(f"rare label {label!r}: {nearest(label, outputs)}")
    return outputs, rare


def _rejected(event: int, time: float, site: str, start_time: float, reason: str) -> Record:
    stamp = {"event": event, "time": time, "client": site}
    return {"kind": "rejected", **stamp, "start_time": start_time, "reason": reason}
