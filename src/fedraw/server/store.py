"""The durable state of a federation: its log, its journal of updates and its snapshots.

A change of members is in the log before it takes effect. An update is accepted when it is in the
journal, before it takes effect. So a restart recovers the state from the last snapshot and the
later records of the log and the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rare_by_coverage, rare_labels_of
from fedraw.core.settings import shown
from fedraw.core.types import Finding, Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate, error_context, nearest
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
    arrival_record,
    finding_record,
)
from fedraw.server.journal import ArrivalFacts, Journal
from fedraw.server.log import (
    PUT_BACK,
    ServerLog,
    log_text,
    scored_sites,
    scores_of,
    scores_record,
)
from fedraw.server.models import ModelFiles
from fedraw.server.settings import ServerSettings
from fedraw.server.snapshots import FederationState, Snapshot, Snapshots, Tensor, tensors_of
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
    checked_answer,
    checked_step,
    scorer_of,
)
from fedraw.strategies.scoring import Scorer

LOGGER = logging.getLogger("fedraw.server")

MemberChange = JoinedRecord | DeclaredRecord | LeftRecord


@dataclass(frozen=True)
class FederationIdentity:
    """The properties by which a restarted server recognises its federation; the log has them."""

    strategy: Mapping[str, Any]  # name and settings
    settings: Mapping[str, Any]
    tensors: Sequence[Tensor] = ()  # of the model
    layout: Layout | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)  # tensors that are not trained
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
        options = {name: _as_json(value) for name, value in settings_of(strategy).items()}
        return cls(
            {"name": spec_name(strategy), **options},
            {name: _as_json(v) for name, v in asdict(settings).items() if v is not None},
            tensors_of(layout, dtypes),
            layout,
            dict(constants or {}),
            {"name": log_name(strategy), "influence": strategy.needs.influence, "engine": engine},
        )


class Replayed(NamedTuple):
    """What replaying a log has found.

    Attributes:
        last: The time of the last record.
        missing: The records that are missing from the log.
        unlike: The events of arrivals whose records the replay does not reproduce.

    """

    last: float
    missing: list[Record]
    unlike: list[int]


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
        self.log = ServerLog(folder)
        self.journal = Journal(folder / "updates")
        self.snapshots = Snapshots(
            folder / "checkpoint",
            self.journal,
            identity.strategy,
            identity.tensors,
            identity.settings.get("rollback_points", 0),
        )
        self.models = ModelFiles(
            folder, identity.tensors, identity.constants, identity.settings.get("keep_best", "")
        )
        self._strategy = strategy
        self.wall = wall
        self._time_zero = 0.0  # the log's time 0 on the clock of `now`
        self._strategy_state: State | None = None

    @property
    def begun(self) -> bool:
        """Whether training has begun."""
        return self._strategy_state is not None

    @property
    def strategy_state(self) -> State:
        """The state of the strategy; a RuntimeError before training has begun."""
        if self._strategy_state is None:
            raise RuntimeError("training has not begun")
        return self._strategy_state

    @property
    def scorer(self) -> Scorer | None:
        """The strategy's scorer, if it uses updates as label evidence."""
        return scorer_of(self._strategy.needs, self.strategy_state)

    def coverage(self) -> Mapping[str, Any] | None:
        """Return the coverage from private label summaries, as the start record has it."""
        first = self.log.first_record()
        assert isinstance(first, StartRecord)
        return first.coverage

    def time(self, now: float) -> float:
        """Return the log's time; 0 before training has begun."""
        return round(now - self._time_zero, 3) if self.begun else 0.0

    def quarantine_left(self, site: str, now: float) -> float:
        """Return the seconds until the site's quarantine ends, in the log's time."""
        return max(0.0, self.state.quarantined.get(site, 0.0) - self.time(now))

    # Changes; each is on disk before it takes effect

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
        """Begin training with these sites; training has begun once the first snapshot is on disk.

        Args:
            model: The initial model.
            counts: The label counts of each site.
            nodes: The node of each site.
            rare: The rare labels of the settings; empty to choose them by coverage.
            now: The current time.
            scale: The scale of the initial model; see `admission.scale_of`.
            coverage: The coverage from private label summaries, if any.

        """
        table = LabelTable.from_counts(counts)
        payload = self._strategy.needs.payload
        classes = None if payload is None else self.identity.settings["labels"]
        answer = self._strategy.start(Setup(model, table, self.identity.layout, classes))
        strategy_state, receivers = checked_answer(self._strategy, answer)
        scorer = scorer_of(self._strategy.needs, strategy_state)
        undeclared = classes if payload is not None and not payload.declared else None
        labels, rare_labels = _labels_of(scorer, table, rare, coverage, undeclared)
        self.log.clear()
        epoch = self.wall()
        self.log.commit(self._start_record(labels, rare_labels, epoch, coverage))
        for site, own in counts.items():
            self.log.commit(
                JoinedRecord(event=0, time=0.0, client=site, counts=own, node=nodes[site])
            )
        state = FederationState(
            epoch,
            counts={site: dict(own) for site, own in counts.items()},
            awaiting_model=_receiving(receivers),
            nodes=dict(nodes),
            rare_labels=list(rare_labels),
            configured_rare_labels=list(rare),
            scale=scale,
        )
        self.models.begin()
        self.snapshots.write(strategy_state, state, self.log.to_disk(), 0.0)
        # Together, because a full disk before this line must leave a federation without members.
        self._strategy_state, self.state = strategy_state, state
        self._time_zero = now

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
        """Remove a member; with `quarantine`, it may not return for that many seconds."""
        time = self.time(now)
        self._change(
            LeftRecord(
                event=self.state.event,
                time=time,
                client=site,
                reason=log_text(reason),
                until=None if quarantine is None else time + quarantine,
            )
        )

    def _change(self, record: MemberChange) -> None:
        """Write the record to disk, apply it, and log the scores that it changes."""
        self.log.commit(record)
        site = str(record.client)
        sites = scored_sites(self.strategy_state, site)
        before = scores_of(self.strategy_state, sites)
        self._apply(record)
        after = scores_of(self.strategy_state, sites)
        cause = f"{site} {record.kind}"
        self.log.note(scores_record(record.event, record.time, cause, before, after))

    def _apply(self, record: MemberChange) -> None:
        """Apply a change of members to the state."""
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
                    state.nodes[site] = record.node  # it differs if the site has a new key
            case DeclaredRecord():
                event = Declared(site, counts)
            case LeftRecord():
                event = Left(site)
                state.counts.pop(site, None)
                state.awaiting_model.pop(site, None)
                state.norms.pop(site, None)
                if record.until is not None:
                    state.quarantined[site] = record.until
        if counts:
            state.counts[site] = dict(counts)
        self._strategy_state, receivers = checked_step(self._strategy, self.strategy_state, event)
        self._hand_out(receivers)

    def accept(self, update: Update, facts: ArrivalFacts) -> str | None:
        """Write the update to the journal, then pass it to the strategy.

        Return the reason if the strategy refuses the update, otherwise None.
        """
        self.log.check()
        event = self.state.event + 1
        update = self.journal.write(event, update, facts)
        arrival = self._arrive(event, update, facts)
        for record in (arrival, *self._finding_records(facts.time)):
            self.log.note(record)
        return arrival.reason if isinstance(arrival, RejectedRecord) else None

    def _arrive(
        self, event: int, update: Update, facts: ArrivalFacts
    ) -> ArrivalRecord | RejectedRecord:
        """Pass the update to the strategy, and return the log record of the arrival."""
        state, site, before = self.state, str(update.client), self.strategy_state.version
        state.event = event
        try:
            self._strategy_state, receivers = checked_step(
                self._strategy, self.strategy_state, Arrived(update)
            )
        except RefusedUpdate as refusal:
            self.journal.remove(event)
            return RejectedRecord(
                event=event,
                time=facts.time,
                client=site,
                start_time=facts.start_time,
                reason=log_text(str(refusal)),
            )
        state.accepted += 1
        state.norms[site] = facts.norm
        state.awaiting_model.pop(site, None)
        self._hand_out(receivers)
        return arrival_record(
            event,
            facts.time,
            site,
            handed_out=(facts.start_event, facts.start_time, update.start_version),
            versions=(before, self.strategy_state.version),
            contents=self.strategy_state.contents,
            norm=facts.norm,
            metrics=facts.metrics,
        )

    def _hand_out(self, receivers: Receivers) -> None:
        self.state.awaiting_model.update(_receiving(receivers))

    def reject(
        self, site: str, reason: str, start_time: float, now: float, norm: float | None = None
    ) -> None:
        """Log a refused update; its norm, if given, counts towards the median norm."""
        self.state.event += 1
        self._note_norm(site, norm)
        self.log.note(
            RejectedRecord(
                event=self.state.event,
                time=self.time(now),
                client=site,
                start_time=start_time,
                reason=log_text(reason),
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

    def note(
        self, reason: str, now: float, site: str | None = None, back_off: float | None = None
    ) -> None:
        """Log a note for the operator; before training has begun, print it to the console.

        A note about a site that is asked again later tells after how many seconds of `back_off`.
        """
        if not self.begun:
            LOGGER.warning("%s%s", "" if site is None else f"{log_text(site)}: ", log_text(reason))
            return
        time = self.time(now)
        self.log.note(
            NoteRecord(
                event=self.state.event,
                time=time,
                client=site,
                reason=log_text(reason),
                about=None if back_off is None else "back-off",
                until=None if back_off is None else time + back_off,
            )
        )

    def end(self, reason: str, now: float) -> None:
        """End the federation permanently."""
        self.log.commit(EndRecord(event=self.state.event, time=self.time(now), reason=reason))
        self.state.ended = reason

    def snapshot(self, now: float) -> None:
        """Write a snapshot; an OSError keeps the earlier snapshots."""
        log = self.log.to_disk()
        self.snapshots.write(self.strategy_state, self.state, log, self.time(now))

    # Recovery

    def recover(self, state_type: type[State], now: float) -> None:
        """Continue the federation in the folder, if there is one.

        All files are verified before any is changed. `state_type` is the type of the strategy's
        state.
        """
        self.journal.remove_drafts()
        try:
            found = self.snapshots.read(state_type)
        except BadInput:
            self.log.first_record()  # the message for a log of another version is clearer
            raise
        if found is None:
            self._refuse_missing_snapshot()
            return
        self._refuse_other_rare_labels(found.state)
        self._refuse_other_sums()
        replayed = self.restore(found)
        self.log.remove_torn_line()
        for record in replayed.missing:
            self.log.note(record)
        self._time_zero = now - replayed.last
        if self.state.ended is None:
            self._log_restart(replayed.last, found.damaged)
        else:
            LOGGER.warning(
                "this federation has ended (%s), and new limits do not reopen it; set another "
                "folder to train again",
                self.state.ended,
            )

    def restore(self, found: Snapshot, until: Position | None = None) -> Replayed:
        """Restore a snapshot and replay the log to its end, or to `until`; write nothing."""
        if len(self.log) < found.log.length:
            raise BadInput(
                f"{self.log.path} has {len(self.log)} bytes, and the last snapshot was written "
                f"when it had {found.log.length}; {PUT_BACK}"
            )
        self._strategy_state, self.state = found.strategy_state, found.state
        return self._replay(found.log, until)

    def _replay(self, since: Position, until: Position | None) -> Replayed:
        """Apply the log's records since the snapshot, then updates that only the journal has."""
        last, unlike = self.state.clock, []
        for record in self.log.verify(since, until):
            if not isinstance(record, StartRecord):
                last = max(last, record.time)
            match record:
                case JoinedRecord() | DeclaredRecord() | LeftRecord():
                    self._apply(record)
                case ArrivalRecord():
                    if self._arrive(record.event, *self.journal.read(record.event)) != record:
                        unlike.append(record.event)
                    self._drain_findings()  # these are already in the log
                case RejectedRecord():
                    self.state.event = record.event
                    self._note_norm(str(record.client), record.norm)
                case RestartedRecord():
                    self.state.epoch = record.epoch
                case EndRecord():
                    self.state.ended = record.reason
        missing: list[Record] = []
        if until is not None:
            return Replayed(last, missing, unlike)
        # The server stopped after accepting these updates and before logging them.
        for event in self.journal.events():
            if event > self.state.event:
                update, facts = self.journal.read(event)
                missing.append(self._arrive(event, update, facts))
                missing += self._finding_records(facts.time)
                last = max(last, facts.time)
        return Replayed(last, missing, unlike)

    def _log_restart(self, last: float, damaged: Sequence[str]) -> None:
        """Log the restart; only the wall clock can measure the gap."""
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
                events=self.identity.settings.get("arrivals") or 0,
            )
        )

    def _refuse_missing_snapshot(self) -> None:
        """Refuse a folder without a snapshot, unless its federation never began to train."""
        kinds = [record.kind for record in self.log.verify()]
        updates = len(self.journal.events())
        if not updates and set(kinds) <= {"start", "joined"}:
            return
        raise BadInput(
            f"{self.folder} holds a federation (its log has {kinds.count('arrival')} accepted "
            f"updates, updates/ has {updates}), but checkpoint/ has no snapshot of it; to "
            "continue, restore checkpoint/ from a backup; to start again, set another folder"
        )

    def _refuse_other_rare_labels(self, before: FederationState) -> None:
        """Refuse other rare labels, because they would change the metrics within one log."""
        configured = list(self.identity.settings.get("rare_labels", ()))
        same = configured == before.configured_rare_labels
        if not same and set(configured) != set(before.rare_labels):
            raise BadInput(
                f"{self.folder} holds a federation with rare_labels = "
                f"{','.join(before.rare_labels)!r}, and this run sets {','.join(configured)!r}; "
                "set the same labels, or another folder"
            )

    def _refuse_other_sums(self) -> None:
        """Refuse to add sums of another feature map, or of labels in another order."""
        first = self.log.first_record()
        if self._strategy.needs.payload is None or not isinstance(first, StartRecord):
            return
        for key, before in first.spec["server"].items():
            now = self.identity.settings.get(key)
            if key in ("feature_map", "labels") and now != before:
                raise BadInput(
                    f"{self.folder} holds a federation with {key} = {shown(before)}, and this run "
                    f"sets {shown(now)}; set the same, or another folder"
                )


def state_type_of(strategy: Strategy[Any], min_clients: int, layout: Layout) -> type[State]:
    """Return the type of the strategy's state, by starting it with `min_clients` artificial sites.

    So settings that do not fit are refused before any site is asked.
    """
    sites = {f"site {i}": {"label": 1} for i in range(min_clients)}
    model = np.zeros(layout.size, np.float32)
    with error_context(f"with min_clients = {min_clients}"):
        state, _ = strategy.start(Setup(model, LabelTable.from_counts(sites), layout))
    if not can_be_saved(state):
        raise BadInput(
            f"the state of {type(strategy).__name__} cannot be saved and restored; build it from "
            "dataclasses, arrays and plain values"
        )
    return type(state)


def _receiving(receivers: Receivers) -> dict[str, None]:
    """Return the sites that get the model, in order and each once."""
    return dict.fromkeys(str(site) for site in receivers)


def _labels_of(
    scorer: Scorer | None,
    table: LabelTable,
    rare: tuple[str, ...],
    coverage: Mapping[str, Any] | None,
    undeclared: Sequence[str] | None = None,
) -> tuple[list[str], tuple[str, ...]]:
    """Return all labels and the rare labels; without declared labels, those of the model.

    `undeclared` are the labels of the settings, if sites declare none.
    """
    if coverage is not None:
        held = coverage["labels"]
        return list(held), rare or rare_by_coverage(held)
    inferred = None if scorer is None else scorer.inferred_labels()
    if inferred is None and undeclared is None:
        declared = [str(label) for label in table.labels]
        return declared, tuple(str(label) for label in rare_labels_of(rare or None, table))
    outputs = list(undeclared or ()) if inferred is None else list(inferred.coverage)
    for label in rare:
        if label not in outputs:
            raise BadInput(f"rare label {label!r}: {nearest(label, outputs)}")
    return outputs, rare


def _as_json(value: Any) -> Any:
    """Return the value as it would be after writing it to JSON and reading it back."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
