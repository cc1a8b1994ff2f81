"""What a federation must not lose: the strategy's state, who takes part, what was accepted.

A change of members is in the log before it takes effect, an update in the journal: that is when it
is accepted. So the state is always the last snapshot and what the log and the journal have since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rare_labels_of
from fedraw.core.types import Finding, Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate, nearest
from fedraw.eventlog.log_file import Position
from fedraw.eventlog.records import (
    ArrivalRecord,
    DeclaredRecord,
    EndRecord,
    JoinedRecord,
    LeftRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    StartRecord,
    finding_record,
)
from fedraw.server.journal import Flight, Journal
from fedraw.server.log import PUT_BACK, ServerLog
from fedraw.server.records import (
    arrival_record,
    rejected_record,
    scored,
    scores_of,
    scores_record,
    short,
)
from fedraw.server.snapshots import Book, Snapshots, Tensor
from fedraw.strategies.protocol import (
    Arrived,
    Declared,
    Joined,
    Left,
    Receivers,
    Setup,
    State,
    Strategy,
    scorer_of,
)
from fedraw.strategies.scoring import Scorer

LOGGER = logging.getLogger("fedraw.server")

MemberChange = JoinedRecord | DeclaredRecord | LeftRecord


@dataclass(frozen=True)
class Identity:
    """What this server is: written to the log, and compared when it is started again."""

    strategy: Mapping[str, Any]  # name and settings
    settings: Mapping[str, Any]
    tensors: Sequence[Tensor] = ()  # of the model
    layout: Layout | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """One folder of one federation.

    Every `now` is of a clock that only goes forward within this process and has any origin. The
    log's time counts the seconds that servers of this federation have run; it goes on where it was
    when one is started again. `wall` gives unix seconds, which are only ever shown.
    """

    def __init__(
        self,
        folder: Path,
        strategy: Strategy[Any],
        identity: Identity,
        wall: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.book = Book()
        self.log = ServerLog(folder)
        self.journal = Journal(folder / "updates")
        self._snapshots = Snapshots(
            folder / "checkpoint", self.journal, identity.strategy, identity.tensors
        )
        self._strategy = strategy
        self._wall = wall
        self._zero = 0.0  # the log's time 0, by the clock of `now`
        self._state: State | None = None

    @property
    def begun(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("training has not begun")
        return self._state

    @property
    def scorer(self) -> Scorer | None:
        """The strategy's scorer, if it uses updates as label evidence."""
        return scorer_of(self._strategy.needs, self.state)

    def time(self, now: float) -> float:
        """Seconds since training began, as the log counts; 0 before."""
        return round(now - self._zero, 3) if self.begun else 0.0

    def quarantine_left(self, site: str, now: float) -> float:
        """Seconds until the site may come back; they pass while a server runs."""
        return max(0.0, self.book.quarantined.get(site, 0.0) - self.time(now))

    def begin(
        self,
        model: Vector,
        counts: Mapping[str, dict[str, int]],
        nodes: Mapping[str, int],
        rare: tuple[str, ...],
        now: float,
        scale: float,
    ) -> None:
        """Found the federation; nothing counts before its first snapshot is on disk."""
        table = LabelTable.from_counts(counts)
        layout = self.identity.layout
        state, receivers = self._strategy.start(Setup(model, table, layout))
        asked = list(rare)
        labels, rare = _labels_of(scorer_of(self._strategy.needs, state), table, rare)
        self.log.clear()
        epoch = self._wall()
        self.log.commit(self._start_record(labels, rare, epoch))
        for site, own in counts.items():
            self.log.commit(
                JoinedRecord(event=0, time=0.0, client=site, counts=own, node=nodes[site])
            )
        self.book = Book(
            epoch, nodes=dict(nodes), rare_labels=list(rare), rare_asked=asked, scale=scale
        )
        self.book.counts = {site: dict(own) for site, own in counts.items()}
        self._owe(receivers)
        self._snapshots.write(state, self.book, self.log.to_disk(), 0.0)
        self._state, self._zero = state, now

    def _start_record(
        self, labels: Sequence[str], rare: Sequence[str], epoch: float
    ) -> StartRecord:
        known = self.identity
        return StartRecord(
            origin="server",
            seed=None,
            events=known.settings.get("arrivals"),
            labels=list(labels),
            rare_labels=list(rare),
            spec={"strategy": dict(known.strategy), "server": dict(known.settings)},
            epoch=epoch,
            **known.facts,
        )

    def join(self, site: str, counts: dict[str, int], node: int, now: float) -> None:
        event, time = self.book.event, self.time(now)
        self._change(JoinedRecord(event=event, time=time, client=site, counts=counts, node=node))

    def declare(self, site: str, counts: dict[str, int], now: float) -> None:
        event, time = self.book.event, self.time(now)
        self._change(
            DeclaredRecord(event=event, time=time, client=site, counts=counts, reason="new counts")
        )

    def leave(self, site: str, reason: str, now: float, quarantine: float | None = None) -> None:
        """`quarantine`: for how many seconds the site may not come back."""
        time = self.time(now)
        self._change(
            LeftRecord(
                event=self.book.event,
                time=time,
                client=site,
                reason=short(reason),
                until=None if quarantine is None else time + quarantine,
            )
        )

    def accept(self, update: Update, flight: Flight) -> str | None:
        """Journal the update, then act on it; the reason if the strategy refuses it after all."""
        self.log.check()
        event = self.book.event + 1
        self.journal.write(event, update, flight)
        record = self.arrive(event, update, flight)
        for told in (record, *self._doubts(flight.time)):
            self.log.note(told)
        return record.reason if isinstance(record, RejectedRecord) else None

    def reject(
        self, site: str, reason: str, start_time: float, now: float, norm: float | None = None
    ) -> None:
        """`norm`: of a whole update that was refused; it has a say in what is usual."""
        self.book.event += 1
        self._hear(site, norm)
        event, time = self.book.event, self.time(now)
        self.log.note(rejected_record(event, time, site, start_time, reason, norm))

    def note(self, reason: str, now: float, site: str | None = None) -> None:
        """For the operator; before training begins there is no event log to write it to."""
        if not self.begun:
            LOGGER.warning("%s%s", "" if site is None else f"{short(site)}: ", short(reason))
        else:
            event, time = self.book.event, self.time(now)
            self.log.note(NoteRecord(event=event, time=time, client=site, reason=short(reason)))

    def end(self, reason: str, now: float) -> None:
        self.log.commit(EndRecord(event=self.book.event, time=self.time(now), reason=reason))
        self.book.ended = reason

    def snapshot(self, now: float) -> None:
        """An OSError leaves the snapshots there are."""
        self._snapshots.write(self.state, self.book, self.log.to_disk(), self.time(now))

    def recover(self, state: type[State], now: float) -> None:
        """Go on where the folder's federation was, if there is one; until then change nothing."""
        found = self._snapshots.read(state)
        if found is None:
            self._refuse_remains()
            return
        self._refuse_other_rare_labels(found.book)
        if len(self.log) < found.log.length:
            raise BadInput(
                f"{self.log.path} has {len(self.log)} bytes, and the last snapshot was written "
                f"when it had {found.log.length}; {PUT_BACK}"
            )
        self._state, self.book = found.state, found.book
        last, untold = self._replay(found.log)
        self.log.cut_torn_line()
        for record in untold:
            self.log.note(record)
        self._zero = now - last
        if self.book.ended is None:
            self._tell_restart(last, found.damaged)
        else:
            LOGGER.warning(
                "this federation has ended (%s), and other limits do not open it again; set "
                "another folder to train anew",
                self.book.ended,
            )

    def _refuse_remains(self) -> None:
        """Without a snapshot, there may be no more than a beginning that was cut off."""
        kinds = [record.kind for record in self.log.verify()]
        kept = len(self.journal.events())
        if not kept and set(kinds) <= {"start", "joined"}:
            return
        raise BadInput(
            f"{self.folder} holds a federation (the log tells of {kinds.count('arrival')} accepted "
            f"updates, updates/ has {kept}), but no snapshot of it in checkpoint/; to go on, put "
            "checkpoint/ back from a backup; to start anew, set another folder"
        )

    def _refuse_other_rare_labels(self, book: Book) -> None:
        """Metrics before and after a restart have to mean the same."""
        asked = list(self.identity.settings.get("rare_labels", ()))
        if asked != book.rare_asked and set(asked) != set(book.rare_labels):
            raise BadInput(
                f"{self.folder} holds a federation with rare_labels = "
                f"{','.join(book.rare_labels)!r}, and this run sets {','.join(asked)!r}; "
                "set the same, or another folder"
            )

    def _tell_restart(self, last: float, damaged: Sequence[str]) -> None:
        """How long the server was away is all that only the wall clock can tell."""
        wall = self._wall()
        gap = round(max(0.0, wall - (self.book.epoch + last)), 3)
        self.book.epoch = wall - last
        self.log.note(
            RestartedRecord(
                event=self.book.event,
                time=last,
                epoch=self.book.epoch,
                gap=gap,
                reasked=list(self.book.owed),
                damaged=list(damaged) or None,
            )
        )

    def _replay(self, since: Position) -> tuple[float, list[Record]]:
        """Do again what the log tells since the snapshot, and what only the journal has.

        Return the time of the last record, and the records that the log lacks.
        """
        last = self.book.clock
        for record in self.log.verify(since):
            if not isinstance(record, StartRecord):
                last = max(last, record.time)
            match record:
                case JoinedRecord() | DeclaredRecord() | LeftRecord():
                    self._member_changed(record)
                case ArrivalRecord():
                    self.arrive(record.event, *self.journal.read(record.event))
                    self._drain_findings()  # the log has them already
                case RejectedRecord():
                    self.book.event = record.event
                    self._hear(str(record.client), record.norm)
                case RestartedRecord():
                    self.book.epoch = record.epoch
                case EndRecord():
                    self.book.ended = record.reason
        untold: list[Record] = []
        # Accepted, but the server was gone before the log had it.
        for event in self.journal.events():
            if event > self.book.event:
                update, flight = self.journal.read(event)
                untold += [self.arrive(event, update, flight), *self._doubts(flight.time)]
                last = max(last, flight.time)
        return last, untold

    def arrive(self, event: int, update: Update, flight: Flight) -> ArrivalRecord | RejectedRecord:
        """Let the strategy have the update; the record of what that did."""
        book, site, before = self.book, str(update.client), self.state.version
        book.event = event
        try:
            self._state, receivers = self._strategy.step(self.state, Arrived(update))
        except RefusedUpdate as refusal:
            self.journal.drop(event)
            return rejected_record(event, flight.time, site, flight.start_time, str(refusal))
        book.accepted += 1
        self._hear(site, flight.norm)
        book.owed.pop(site, None)
        self._owe(receivers)
        return arrival_record(event, update, flight, before, self.state)

    def _hear(self, site: str, norm: float | None) -> None:
        if norm is not None:
            self.book.heard[site] = norm

    def _doubts(self, time: float) -> list[Record]:
        event = self.book.event
        return [finding_record(event, time, **f._asdict()) for f in self._drain_findings()]

    def _drain_findings(self) -> Sequence[Finding]:
        return () if self.scorer is None else self.scorer.drain_findings()

    def _change(self, record: MemberChange) -> None:
        """On disk first; then it takes effect, and the log tells what it did to the scores."""
        self.log.commit(record)
        site = str(record.client)
        sites = scored(self.state, site)
        before = scores_of(self.state, sites)
        self._member_changed(record)
        after = scores_of(self.state, sites)
        cause = f"{site} {record.kind}"
        self.log.note(scores_record(record.event, record.time, cause, before, after))

    def _member_changed(self, record: MemberChange) -> None:
        book, site = self.book, str(record.client)
        counts = {} if isinstance(record, LeftRecord) else dict(record.counts or {})
        event: Joined | Declared | Left
        book.quarantined.pop(site, None)
        if new := len(self.state.federation.new_labels(counts)):
            book.introduced[site] = book.introduced.get(site, 0) + new
        match record:
            case JoinedRecord():
                event = Joined(site, counts)
                if record.node is not None:
                    book.nodes.setdefault(site, record.node)
            case DeclaredRecord():
                event = Declared(site, counts)
            case LeftRecord():
                event = Left(site)
                del book.counts[site]
                book.owed.pop(site, None)
                book.heard.pop(site, None)
                if record.until is not None:
                    book.quarantined[site] = record.until
        if counts:
            book.counts[site] = dict(counts)
        self._state, receivers = self._strategy.step(self.state, event)
        self._owe(receivers)

    def _owe(self, receivers: Receivers) -> None:
        self.book.owed.update(dict.fromkeys(str(site) for site in receivers))


def _labels_of(
    scorer: Scorer | None, table: LabelTable, rare: tuple[str, ...]
) -> tuple[list[str], tuple[str, ...]]:
    """All labels, and those that metrics call rare; the model's own where sites tell none."""
    inferred = None if scorer is None else scorer.inferred_labels()
    if inferred is None:
        told = [str(label) for label in table.labels]
        return told, tuple(str(label) for label in rare_labels_of(rare or None, table))
    outputs = list(inferred.coverage)
    for label in rare:
        if label not in outputs:
            raise BadInput(f"rare label {label!r}: {nearest(label, outputs)}")
    return outputs, rare
