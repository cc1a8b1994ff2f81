"""`fedraw server verify`: every checksum and every invariant of a federation's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isclose, prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedraw.core.layout import Layout
from fedraw.core.settings import checked_settings
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, Chain, Position, is_cut_off, require_continuation
from fedraw.eventlog.records import (
    ArrivalRecord,
    DeclaredRecord,
    EndRecord,
    EvaluationRecord,
    JoinedRecord,
    LeftRecord,
    Record,
    RejectedRecord,
    StartRecord,
)
from fedraw.eventlog.segments import open_log, place
from fedraw.server.journal import Journal
from fedraw.server.log import require_server_folder
from fedraw.server.snapshots import FederationState, Tensor, folders_of
from fedraw.server.store import FederationIdentity, FederationStore, state_type_of
from fedraw.storage import snapshot
from fedraw.storage.lock import FolderLock
from fedraw.storage.numbered_folders import VerifiedFolder
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.statistics import with_statistics

REMEDY = "restore the folder from a backup"
RUNNING = "stop its server first, or verify a backup"


@dataclass
class Check:
    """One thing that was verified: how many of it, and what is wrong."""

    name: str
    count: int = 0
    problems: list[str] = field(default_factory=list)
    remark: str = ""


def verify_folder(folder: Path) -> list[Check]:
    """Verify a federation's folder while no server runs in it; nothing is changed.

    The checks are: all digests of the log and the invariants of its records, the checksums of all
    snapshots and updates, that each snapshot agrees with the log at its place, that all updates
    that a restart needs are there, that replaying the last but one snapshot gives the last one to
    the bit, and that the model files have the model's tensors.
    """
    require_server_folder(folder)
    lock = FolderLock(folder, RUNNING)
    try:
        found = [_snapshot(one) for one in folders_of(folder / "checkpoint").read_all()][::-1]
        places = [one.log for one in found if isinstance(one, _Kept)]
        log, moments = _log(folder / LOG, places)
        snapshots = Check("snapshots", len(found))
        for one in found:
            snapshots.problems += (
                [one] if isinstance(one, str) else _disagreements(one, moments.get(one.log))
            )
        if not found and moments:
            snapshots.problems.append(f"{folder / 'checkpoint'} has no snapshot; {REMEDY}")
        kept = [one for one in found if isinstance(one, _Kept)]
        updates = _updates(folder, kept, moments)
        models = _models(folder, kept)
    finally:
        lock.close()
    return [log, snapshots, updates, _replay(folder, kept), models]


class _Invariants:
    """What must hold between the records of a server's log, and what it says at each place."""

    def __init__(self) -> None:
        self.event = self.version = self.accepted = 0
        self.time = 0.0
        self.members: dict[str, dict[str, int]] = {}
        self._records = 0
        self._ended = False

    def observe(self, record: Record) -> Iterator[str]:
        """Take in the next record; yield what is wrong with it."""
        self._records += 1
        if isinstance(record, StartRecord) != (self._records == 1):
            yield "the start record must be the first, and the only one"
        if isinstance(record, StartRecord):
            return
        if self._ended:
            yield "it follows the end record"
        if record.time < self.time:
            yield f"its time {record.time} is before {self.time}, that of an earlier record"
        self.time = record.time
        if isinstance(record, EvaluationRecord):  # sites may take their time to evaluate
            if record.event > self.event:
                yield f"its event is {record.event}, and the last one was {self.event}"
            return
        counts = isinstance(record, ArrivalRecord | RejectedRecord)
        if record.event != self.event + counts:
            yield f"its event is {record.event}, and {self.event + counts} is next"
        self.event = record.event
        yield from self._of_kind(record)

    def _of_kind(self, record: Record) -> Iterator[str]:
        site = str(getattr(record, "client", ""))
        match record:
            case JoinedRecord():
                if site in self.members:
                    yield f"{site!r} joins, and is a member already"
                self.members[site] = dict(record.counts)
            case LeftRecord() | DeclaredRecord() | ArrivalRecord() if site not in self.members:
                yield f"{site!r} is no member"
            case LeftRecord():
                del self.members[site]
            case DeclaredRecord():
                self.members[site] = dict(record.counts or {})
            case ArrivalRecord():
                self.accepted += 1
                yield from self._of_arrival(record)
            case EndRecord():
                self._ended = True

    def _of_arrival(self, record: ArrivalRecord) -> Iterator[str]:
        # A round that does not wait for a site that has left may change the model between arrivals.
        before = record.start_version + record.staleness_versions
        if before < self.version or record.version - before != record.aggregated:
            yield f"its version {record.version} does not follow from {self.version}"
        self.version = record.version
        weights = [weight for weight in record.weights if weight is not None]
        if len(record.weights) not in (0, len(record.buffer)):
            yield f"it has {len(record.weights)} weights for {len(record.buffer)} slots"
        elif (
            weights
            and len(weights) == len(record.weights)
            and not isclose(sum(weights), 1, abs_tol=1e-9)
        ):
            yield f"its weights sum to {sum(weights)}, not to 1"


@dataclass
class _Moment:
    """What the log says at the place of a snapshot."""

    event: int
    accepted: int
    members: dict[str, dict[str, int]]
    later: list[ArrivalRecord] = field(default_factory=list)  # arrivals after it


def _log(log: Path, places: list[Position]) -> tuple[Check, dict[Position, _Moment]]:
    """Verify the log, and note what it says at the given places."""
    check, chain, state = Check("log records"), Chain(remedy=REMEDY), _Invariants()
    moments: dict[Position, _Moment] = {}
    record: Record | None = None
    try:
        with open_log(log) as file:
            for line in file:
                if is_cut_off(line):
                    check.remark = "an unfinished last line, which the next start removes"
                    break
                before = chain.position
                record = chain.decode(line, log)
                check.count += 1
                for problem in state.observe(record):
                    check.problems.append(f"{place(log, before.length, before.lines)}: {problem}")
                if isinstance(record, ArrivalRecord):
                    for moment in list(moments.values())[-2:]:
                        moment.later.append(record)
                if chain.position in places:
                    members = {site: dict(own) for site, own in state.members.items()}
                    moments[chain.position] = _Moment(state.event, state.accepted, members)
        require_continuation(log, record, REMEDY)
    except BadInput as problem:
        check.problems.append(str(problem))
    return check, moments


@dataclass
class _Kept:
    """A snapshot whose checksums are right."""

    found: VerifiedFolder
    state: FederationState
    model: Any
    log: Position
    updates: list[int]
    tensors: list[Tensor]


def _snapshot(found: VerifiedFolder | BadInput) -> _Kept | str:
    """Read a snapshot apart from its strategy's state, or say what is wrong with it."""
    if isinstance(found, BadInput):
        return str(found)
    tree, arrays = snapshot.read(found.path)
    try:
        state: FederationState = snapshot.unpack(FederationState, tree["state"], arrays)
        facts = found.metadata
        return _Kept(
            found,
            state,
            arrays[tree["model"]["array"]],
            Position(*facts["log"]),
            list(facts["updates"]),
            [Tensor(name, tuple(shape), *rest) for name, shape, *rest in facts["tensors"]],
        )
    except (KeyError, TypeError, ValueError) as problem:
        return f"{found.path} does not have the form of a snapshot ({problem!r}); {REMEDY}"


def _disagreements(one: _Kept, moment: _Moment | None) -> Iterator[str]:
    """What a snapshot says that the log at its place, or the model's tensors, do not."""
    path, state = one.found.path, one.state
    if moment is None:
        yield f"{path} belongs to a log that had {one.log.lines} lines, and this one has others"
        return
    for what, own, logged in (
        ("event", state.event, moment.event),
        ("accepted updates", state.accepted, moment.accepted),
        ("members", state.counts, moment.members),
    ):
        if own != logged:
            yield f"{path} and the log disagree on the {what}: {own!r:.60}, {logged!r:.60}"
    for what in ("awaiting_model", "norms"):
        if unknown := sorted(set(getattr(state, what)) - set(state.counts)):
            yield f"{path} has {what} of {unknown[0]!r}, which is no member"
    if one.model.shape != (sum(prod(tensor.shape) for tensor in one.tensors),):
        yield f"{path}: its model has {one.model.size} numbers, not those of its tensors"
    if not np.isfinite(one.model).all():
        yield f"{path}: its model has NaN or infinite numbers"


def _updates(folder: Path, kept: list[_Kept], moments: Mapping[Position, _Moment]) -> Check:
    """Verify all updates, and that those are there which the last two snapshots need."""
    journal, check = Journal(folder / "updates"), Check("updates")
    read: dict[int, tuple[str, float]] = {}
    for event in journal.events():
        check.count += 1
        try:
            update, flight = journal.read(event)
            read[event] = str(update.client), flight.time
        except BadInput as problem:
            check.problems.append(str(problem))
    missing = {event: one.found.path.name for one in kept for event in one.updates}
    for one in kept[-2:]:
        for record in moments[one.log].later if one.log in moments else ():
            missing[record.event] = "the log"
            client, time = own = read.get(record.event, (str(record.client), record.time))
            if own != (str(record.client), record.time):
                check.problems.append(
                    f"update {record.event} is of {client!r} at {time}, and in the log it is of "
                    f"{record.client!r} at {record.time}; {REMEDY}"
                )
    known = set(journal.events())
    for event, needed_by in sorted(missing.items()):
        if event not in known:
            check.problems.append(f"update {event}, which {needed_by} needs, is missing; {REMEDY}")
    return check


def _replay(folder: Path, kept: list[_Kept]) -> Check:
    """Replay the last but one snapshot to the last one, and the last one to the present."""
    check = Check("replays to the bit")
    if not kept:
        return check
    facts = kept[-1].found.metadata["strategy"]
    method = CATALOG.get(str(facts["name"]))
    if method is None:
        check.remark = f"left out: {facts['name']} is not a strategy of this library"
        return check
    own = {name: value for name, value in facts.items() if name != "name"}
    try:
        strategy = method.factory(**checked_settings(method.factory, own, "strategy"))
        layout = _layout(kept[-1].tensors)
        identity = FederationIdentity(facts, {}, kept[-1].tensors, layout)
        members = list(kept[-1].state.counts) or ["site"]
        strategy = with_statistics(strategy, layout)
        state_type = state_type_of(strategy, max(len(members), strategy.needs.min_clients), layout)
        store = FederationStore(folder, strategy, identity, lambda: 0.0)
    except BadInput as problem:
        check.problems.append(str(problem))
        return check
    try:
        for one, following in pairwise([*kept[-2:], None]):
            assert one is not None
            store.restore(
                store.load_snapshot(one.found, state_type),
                None if following is None else following.log,
            )
            check.count += 1
            if following is None:
                continue
            loaded = store.load_snapshot(following.found, state_type)
            if _packed(store.strategy_state, store.state) != _packed(
                loaded.strategy_state, loaded.state
            ):
                check.problems.append(
                    f"replaying {one.found.path.name} does not give {following.found.path}"
                )
    except BadInput as problem:
        check.problems.append(str(problem))
    finally:
        store.log.close()
    return check


def _layout(tensors: list[Tensor]) -> Layout:
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]] = {"parameter": [], "statistic": []}
    for tensor in tensors:
        kinds[tensor.kind].append((tensor.name, tensor.shape))
    return Layout.of(kinds["parameter"], kinds["statistic"])


def _packed(strategy_state: Any, state: FederationState) -> tuple[str, dict[str, bytes]]:
    """Everything that matters, to the bit; the clock only says when a snapshot was written."""
    arrays = snapshot.Arrays()
    tree = json.dumps(snapshot.pack([strategy_state, replace(state, clock=0.0)], arrays))
    return tree, {name: array.tobytes() for name, array in arrays.items()}


def _models(folder: Path, kept: list[_Kept]) -> Check:
    """Verify the model files, which an export reads."""
    check = Check("model files")
    for name in (snapshot.MODEL, snapshot.SERVING, snapshot.BEST):
        path = folder / name
        if not path.exists() or not kept:
            continue
        check.count += 1
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as problem:
            check.problems.append(f"{path} cannot be read ({problem}); {REMEDY}")
            continue
        for tensor in kept[-1].tensors:
            found = tensors.get(tensor.name)
            if found is None or found.shape != tensor.shape:
                check.problems.append(f"{path} does not have {tensor}")
            elif not np.isfinite(np.asarray(found, np.float64)).all():
                check.problems.append(f"{path}: {tensor.name!r} has NaN or infinite numbers")
    return check
