"""The durable side of a federation: its state, and the log, journal and snapshots that keep it.

A change of members is in the log before it takes effect. An update is in the journal before it
takes effect; that is when it is accepted. So the state always equals the last snapshot and what the
log and the journal have since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.aggregation import ServingAverage
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rare_by_coverage, rare_labels_of
from fedraw.core.types import Finding, Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate, nearest
from fedraw.eventlog.log_file import Position, read_log
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
from fedraw.server.journal import ArrivalFacts, Journal
from fedraw.server.log import (
    PUT_BACK,
    RESTORE,
    SEGMENT_BYTES,
    ServerLog,
    arrival_record,
    scored_sites,
    scores_of,
    scores_record,
    short,
)
from fedraw.server.models import ModelFiles
from fedraw.server.settings import ServerSettings
from fedraw.server.snapshots import FederationState, Snapshot, Snapshots, Tensor, tensors_of
from fedraw.storage.numbered_folders import VerifiedFolder
from fedraw.storage.snapshot import can_be_saved
from fedraw.strategies.catalog import log_name, settings_of, spec_name
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
class FederationIdentity:
    """What makes two runs the same federation; written to the log and compared by a restart."""

    strategy: Mapping[str, Any]  # name and settings
    settings: Mapping[str, Any]
    tensors: Sequence[Tensor] = ()  # of the model
    layout: Layout | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)  # tensors that nothing changes
    start_fields: Mapping[str, Any] = field(default_factory=dict)  # more fields of the start record

    @classmethod
    def of(
        cls,
        strategy: Strategy[Any],
        settings: ServerSettings,
        layout: Layout,
        dtypes: Mapping[str, str] | None,
        engine: str,
        constants: Mapping[str, Any] | None = None,
    ) -> FederationIdentity:
        """Describe a strategy, its server's settings and its model."""
        own = {name: _as_json(value) for name, value in settings_of(strategy).items()}
        chosen = asdict(settings).items()
        return cls(
            {"name": spec_name(strategy), **own},
            {name: _as_json(value) for name, value in chosen if value is not None},
            tensors_of(layout, dtypes),
            layout,
            dict(constants or {}),
            {"name": log_name(strategy), "influence": strategy.needs.influence, "engine": engine},
        )


class FederationStore:
    """The folder of one federation.

    Every `now` is a reading of one monotonic clock. The log's time counts the seconds that servers
    of this federation have run, and continues after a restart. `wall` returns unix seconds, which
    are only displayed.
    """

    def __init__(
        self,
        folder: Path,
        strategy: Strategy[Any],
        identity: FederationIdentity,
        wall: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.state = FederationState()
        self.log = ServerLog(folder, identity.settings.get("log_segment", SEGMENT_BYTES))
        self.journal = Journal(folder / "updates")
        self._snapshots = Snapshots(
            folder / "checkpoint",
            self.journal,
            identity.strategy,
            identity.tensors,
            identity.settings.get("rollback_points", 0),
        )
        self.models = ModelFiles(
            folder, identity.tensors, identity.constants, identity.settings.get("keep_best", "")
        )
        self.serving: ServingAverage | None = None
        self._strategy = strategy
        self.wall = wall
        self._zero = 0.0  # the log's time 0 on the clock of `now`
        self._strategy_state: State | None = None

    @property
    def begun(self) -> bool:
        """Whether training has begun."""
        return self._strategy_state is not None

    @property
    def strategy_state(self) -> State:
        """The state of the strategy; there is none before training has begun."""
        if self._strategy_state is None:
            raise RuntimeError("training has not begun")
        return self._strategy_state

    @property
    def scorer(self) -> Scorer | None:
        """The strategy's scorer, if it uses updates as label evidence."""
        return scorer_of(self._strategy.needs, self.strategy_state)

    def coverage(self) -> Mapping[str, Any] | None:
        """What private label summaries told before training began, as the log has it."""
        first = next(read_log(self.log.path, remedy=RESTORE, allow_cut_off=True))
        assert isinstance(first, StartRecord)
        return first.coverage

    def time(self, now: float) -> float:
        """Return the log's time; 0 before training has begun."""
        return round(now - self._zero, 3) if self.begun else 0.0

    def quarantine_left(self, site: str, now: float) -> float:
        """Return the seconds of running time until the site may come back."""
        return max(0.0, self.state.quarantined.get(site, 0.0) - self.time(now))

    # Changes, each on disk before it takes effect

    def begin(
        self,
        model: Vector,
        counts: Mapping[str, dict[str, int]],
        nodes: Mapping[str, int],
        rare: tuple[str, ...],
        now: float,
        scale: float,
        coverage: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin training with these sites; it has begun when its first snapshot is on disk."""
        table = LabelTable.from_counts(counts)
        strategy_state, receivers = self._strategy.start(Setup(model, table, self.identity.layout))
        scorer = scorer_of(self._strategy.needs, strategy_state)
        labels, rare_labels = _labels_of(scorer, table, rare, coverage)
        self.log.clear()
        epoch = self.wall()
        self.log.commit(self._start_record(labels, rare_labels, epoch, coverage))
        for site, own in counts.items():
            self.log.commit(
                JoinedRecord(event=0, time=0.0, client=site, counts=own, node=nodes[site])
            )
        self.state = FederationState(
            epoch,
            counts={site: dict(own) for site, own in counts.items()},
            nodes=dict(nodes),
            rare_labels=list(rare_labels),
            configured_rare_labels=list(rare),
            scale=scale,
        )
        self._hand_out(receivers)
        self.models.begin()
        self.serving = self._new_average(strategy_state.model)
        log = self.log.to_disk()
        self._snapshots.write(strategy_state, self.state, log, 0.0, self.serving)
        self._strategy_state, self._zero = strategy_state, now

    def _new_average(self, model: Vector) -> ServingAverage | None:
        settings = self.identity.settings
        if settings.get("serve") != "ema":
            return None
        return ServingAverage(model.copy(), settings["ema_decay"])

    def _start_record(
        self,
        labels: Sequence[str],
        rare: Sequence[str],
        epoch: float,
        coverage: Mapping[str, Any] | None,
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
            coverage=coverage,
            **known.start_fields,
        )

    def join(self, site: str, counts: dict[str, int], node: int, now: float) -> None:
        """Add a member."""
        event, time = self.state.event, self.time(now)
        self._change(JoinedRecord(event=event, time=time, client=site, counts=counts, node=node))

    def declare(self, site: str, counts: dict[str, int], now: float) -> None:
        """Replace a member's label counts."""
        event, time = self.state.event, self.time(now)
        self._change(
            DeclaredRecord(event=event, time=time, client=site, counts=counts, reason="new counts")
        )

    def leave(self, site: str, reason: str, now: float, quarantine: float | None = None) -> None:
        """Remove a member, which may not come back for `quarantine` seconds."""
        time = self.time(now)
        self._change(
            LeftRecord(
                event=self.state.event,
                time=time,
                client=site,
                reason=short(reason),
                until=None if quarantine is None else time + quarantine,
            )
        )

    def _change(self, record: MemberChange) -> None:
        """Write the record to disk, apply it, and log what it did to the scores."""
        self.log.commit(record)
        site = str(record.client)
        sites = scored_sites(self.strategy_state, site)
        before = scores_of(self.strategy_state, sites)
        self._apply(record)
        after = scores_of(self.strategy_state, sites)
        cause = f"{site} {record.kind}"
        self.log.note(scores_record(record.event, record.time, cause, before, after))

    def _apply(self, record: MemberChange) -> None:
        """Let a change of members take effect."""
        state, site = self.state, str(record.client)
        counts = {} if isinstance(record, LeftRecord) else dict(record.counts or {})
        event: Joined | Declared | Left
        state.quarantined.pop(site, None)
        if new := len(self.strategy_state.federation.new_labels(counts)):
            state.labels_added[site] = state.labels_added.get(site, 0) + new
        match record:
            case JoinedRecord():
                event = Joined(site, counts)
                if record.node is not None:
                    state.nodes[site] = record.node  # another one only if its key was replaced
            case DeclaredRecord():
                event = Declared(site, counts)
            case LeftRecord():
                event = Left(site)
                del state.counts[site]
                state.awaiting_model.pop(site, None)
                state.norms.pop(site, None)
                if record.until is not None:
                    state.quarantined[site] = record.until
        if counts:
            state.counts[site] = dict(counts)
        self._strategy_state, receivers = self._strategy.step(self.strategy_state, event)
        self._hand_out(receivers)

    def accept(self, update: Update, flight: ArrivalFacts) -> str | None:
        """Write the update to the journal, then let the strategy have it.

        Return the reason if the strategy refuses it, otherwise None.
        """
        self.log.check()
        event = self.state.event + 1
        self.journal.write(event, update, flight)
        arrival = self._arrive(event, update, flight)
        for record in (arrival, *self._finding_records(flight.time)):
            self.log.note(record)
        return arrival.reason if isinstance(arrival, RejectedRecord) else None

    def _arrive(
        self, event: int, update: Update, flight: ArrivalFacts
    ) -> ArrivalRecord | RejectedRecord:
        """Let the strategy have the update, and return the record of what it did."""
        state, site, before = self.state, str(update.client), self.strategy_state.version
        state.event = event
        try:
            self._strategy_state, receivers = self._strategy.step(
                self.strategy_state, Arrived(update)
            )
        except RefusedUpdate as refusal:
            self.journal.remove(event)
            return RejectedRecord(
                event=event,
                time=flight.time,
                client=site,
                start_time=flight.start_time,
                reason=short(str(refusal)),
            )
        state.accepted += 1
        state.norms[site] = flight.norm
        state.awaiting_model.pop(site, None)
        self._hand_out(receivers)
        if self.serving is not None:
            self.serving.observe(self.strategy_state.model)
        return arrival_record(event, update, flight, before, self.strategy_state)

    def _hand_out(self, receivers: Receivers) -> None:
        self.state.awaiting_model.update(dict.fromkeys(str(site) for site in receivers))

    def reject(
        self, site: str, reason: str, start_time: float, now: float, norm: float | None = None
    ) -> None:
        """Log a refused update; its norm, if it has one, counts towards the usual norm."""
        self.state.event += 1
        self._note_norm(site, norm)
        self.log.note(
            RejectedRecord(
                event=self.state.event,
                time=self.time(now),
                client=site,
                start_time=start_time,
                reason=short(reason),
                norm=norm,
            )
        )

    def _note_norm(self, site: str, norm: float | None) -> None:
        if norm is not None:
            self.state.norms[site] = norm

    def _finding_records(self, time: float) -> list[Record]:
        event = self.state.event
        return [finding_record(event, time, **f._asdict()) for f in self._drain_findings()]

    def _drain_findings(self) -> Sequence[Finding]:
        return () if self.scorer is None else self.scorer.drain_findings()

    def note(self, reason: str, now: float, site: str | None = None) -> None:
        """Log a remark for the operator; before training has begun, it goes to the console."""
        if not self.begun:
            LOGGER.warning("%s%s", "" if site is None else f"{short(site)}: ", short(reason))
        else:
            event, time = self.state.event, self.time(now)
            self.log.note(NoteRecord(event=event, time=time, client=site, reason=short(reason)))

    def end(self, reason: str, now: float) -> None:
        """End the federation for good."""
        self.log.commit(EndRecord(event=self.state.event, time=self.time(now), reason=reason))
        self.state.ended = reason

    def snapshot(self, now: float) -> None:
        """Write a snapshot, and rotate the log if it is due; an OSError leaves the earlier ones."""
        if self.state.ended is None:  # the end record is the last of a log
            self.log.rotate(self.state.event, self.time(now))
        log = self.log.to_disk()
        self._snapshots.write(self.strategy_state, self.state, log, self.time(now), self.serving)

    # Recovery

    def recover(self, state_type: type[State], now: float) -> None:
        """Continue the federation of the folder, if there is one.

        Everything is verified before anything is changed. `state_type` is the type of the
        strategy's state.
        """
        self.journal.remove_drafts()
        try:
            found = self._snapshots.read(state_type)
        except BadInput:
            self.log.check_format()  # a folder of another version gets a better message
            raise
        if found is None:
            self._refuse_remains()
            return
        self._refuse_other_rare_labels(found.state)
        last, missing = self.restore(found)
        self.log.cut_torn_line()
        for record in missing:
            self.log.note(record)
        self._zero = now - last
        if self.state.ended is None:
            self._log_restart(last, found.damaged)
        else:
            LOGGER.warning(
                "this federation has ended (%s), and other limits do not open it again; set "
                "another folder to train anew",
                self.state.ended,
            )

    def load_snapshot(self, found: VerifiedFolder, state_type: type[State]) -> Snapshot:
        """The snapshot in a folder whose checksums were verified."""
        return self._snapshots.load(found, state_type)

    def restore(self, found: Snapshot, until: Position | None = None) -> tuple[float, list[Record]]:
        """Go from a snapshot to the present, or to an earlier end of the log; write nothing.

        Return the time of the last record, and the records that the log lacks.
        """
        if len(self.log) < found.log.length:
            raise BadInput(
                f"{self.log.path} has {len(self.log)} bytes, and the last snapshot was written "
                f"when it had {found.log.length}; {PUT_BACK}"
            )
        self._strategy_state, self.state = found.strategy_state, found.state
        # Without an average of before, it begins with the model of the snapshot.
        average = self._new_average(found.strategy_state.model)
        self.serving = average and (found.serving or average)
        return self._replay(found.log, until)

    def _replay(self, since: Position, until: Position | None) -> tuple[float, list[Record]]:
        """Apply what the log has since the snapshot, then what only the journal has."""
        last = self.state.clock
        for record in self.log.verify(since, until):
            if not isinstance(record, StartRecord):
                last = max(last, record.time)
            match record:
                case JoinedRecord() | DeclaredRecord() | LeftRecord():
                    self._apply(record)
                case ArrivalRecord():
                    self._arrive(record.event, *self.journal.read(record.event))
                    self._drain_findings()  # the log has them already
                case RejectedRecord():
                    self.state.event = record.event
                    self._note_norm(str(record.client), record.norm)
                case RestartedRecord():
                    self.state.epoch = record.epoch
                case EndRecord():
                    self.state.ended = record.reason
        missing: list[Record] = []
        if until is not None:
            return last, missing
        # These were accepted, but the server stopped before they were in the log.
        for event in self.journal.events():
            if event > self.state.event:
                update, flight = self.journal.read(event)
                missing.append(self._arrive(event, update, flight))
                missing += self._finding_records(flight.time)
                last = max(last, flight.time)
        return last, missing

    def _log_restart(self, last: float, damaged: Sequence[str]) -> None:
        """Log the restart; the gap is the one thing that only the wall clock knows."""
        wall = self.wall()
        gap = round(max(0.0, wall - (self.state.epoch + last)), 3)
        self.state.epoch = wall - last
        self.log.note(
            RestartedRecord(
                event=self.state.event,
                time=last,
                epoch=self.state.epoch,
                gap=gap,
                reasked=list(self.state.awaiting_model),
                damaged=list(damaged) or None,
            )
        )

    def _refuse_remains(self) -> None:
        """Refuse a folder without a snapshot, unless its federation never got to begin."""
        kinds = [record.kind for record in self.log.verify()]
        kept = len(self.journal.events())
        if not kept and set(kinds) <= {"start", "joined"}:
            return
        raise BadInput(
            f"{self.folder} holds a federation (the log tells of {kinds.count('arrival')} accepted "
            f"updates, updates/ has {kept}), but no snapshot of it in checkpoint/; to go on, put "
            "checkpoint/ back from a backup; to start anew, set another folder"
        )

    def _refuse_other_rare_labels(self, before: FederationState) -> None:
        """Refuse other rare labels: metrics before and after a restart must mean the same."""
        configured = list(self.identity.settings.get("rare_labels", ()))
        same = configured == before.configured_rare_labels
        if not same and set(configured) != set(before.rare_labels):
            raise BadInput(
                f"{self.folder} holds a federation with rare_labels = "
                f"{','.join(before.rare_labels)!r}, and this run sets {','.join(configured)!r}; "
                "set the same, or another folder"
            )


def state_type_of(strategy: Strategy[Any], min_clients: int, layout: Layout) -> type[State]:
    """Start the strategy with so many sites, before any site is asked; the type of its state."""
    sites = {f"site {i}": {"label": 1} for i in range(min_clients)}
    model = np.zeros(layout.size, np.float32)
    try:
        state, _ = strategy.start(Setup(model, LabelTable.from_counts(sites), layout))
    except BadInput as refusal:
        raise BadInput(f"with min_clients = {min_clients}: {refusal}") from None
    if not can_be_saved(state):
        raise BadInput(
            f"the state of {type(strategy).__name__} is not made of dataclasses, arrays and plain "
            "values, so a server could not restore it"
        )
    return type(state)


def _labels_of(
    scorer: Scorer | None,
    table: LabelTable,
    rare: tuple[str, ...],
    coverage: Mapping[str, Any] | None,
) -> tuple[list[str], tuple[str, ...]]:
    """Return all labels and the rare ones; without declared labels, the model's outputs."""
    if coverage is not None:
        held = coverage["labels"]
        return list(held), rare or rare_by_coverage(held)
    inferred = None if scorer is None else scorer.inferred_labels()
    if inferred is None:
        declared = [str(label) for label in table.labels]
        return declared, tuple(str(label) for label in rare_labels_of(rare or None, table))
    outputs = list(inferred.coverage)
    for label in rare:
        if label not in outputs:
            raise BadInput(f"rare label {label!r}: {nearest(label, outputs)}")
    return outputs, rare


def _as_json(value: Any) -> Any:
    """Return the value as it is after writing it to JSON and reading it back."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
