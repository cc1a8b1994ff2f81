"""`fedraw server verify`: checks every checksum of a federation's folder, and replays its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedraw.core.layout import Layout
from fedraw.core.settings import checked_settings
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, Chain, Position, is_cut_off
from fedraw.eventlog.records import (
    ArrivalRecord,
    EvaluationRecord,
    JoinedRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    StartRecord,
)
from fedraw.eventlog.state import RunState, without_zeros
from fedraw.server.discarded import DISCARDED, discarded_updates
from fedraw.server.journal import Journal
from fedraw.server.log import require_server_folder
from fedraw.server.revocation import REVOKED, read_revoked
from fedraw.server.snapshots import FederationState, Tensor, snapshot_folders
from fedraw.server.store import FederationIdentity, FederationStore, state_type_of
from fedraw.storage import snapshot
from fedraw.storage.lock import FolderLock
from fedraw.storage.numbered_folders import VerifiedFolder
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import State
from fedraw.strategies.statistics import with_statistics

REMEDY = "restore the folder from a backup"
RUNNING = "stop its server first, or verify a backup"


@dataclass
class Check:
    """One check: its name, the number of things verified, and the problems found."""

    name: str
    count: int = 0
    problems: list[str] = field(default_factory=list)
    remark: str = ""


def verify_folder(folder: Path) -> list[Check]:
    """Verify a federation's folder without changing it; no server may be running in it.

    The checks are:

    - the digests of the log, and the order of its records;
    - the checksums of all snapshots and updates;
    - that each snapshot agrees with the log at the position of the snapshot;
    - that all updates are present that a restart needs;
    - that replaying the last but one snapshot reproduces the last one bit for bit, and the log's
      records of arrivals from there on;
    - that the model files have the model's tensors;
    - that the lists of revoked sites and of discarded updates can be read.
    """
    require_server_folder(folder)
    lock = FolderLock(folder, RUNNING)
    try:
        folders = list(snapshot_folders(folder / "checkpoint").read_all())[::-1]
        found = [_read_snapshot(one) for one in folders]
        intact = [one for one in found if isinstance(one, _StoredSnapshot)]
        log = _check_log(folder / LOG, [one.log for one in intact])
        snapshots = Check("snapshots", len(found))
        for one in found:
            snapshots.problems += (
                [one] if isinstance(one, str) else _disagreements(one, log.states.get(one.log))
            )
        if not found and (log.begun or Journal(folder / "updates").events()):
            snapshots.problems.append(f"{folder / 'checkpoint'} has no snapshot; {REMEDY}")
        # After a rollback to an old snapshot, the updates before this snapshot are gone.
        last = intact[-1:] if log.rolled_back else intact[-2:]
        updates = _check_updates(folder, intact, last, log.states)
        models, lists = _check_models(folder, intact), _check_lists(folder)
    finally:
        lock.close()
    return [log.check, snapshots, updates, _check_replay(folder, last), models, lists]


class _Invariants:
    """Checks what replaying a server's log would not notice."""

    def __init__(self) -> None:
        self.state = RunState(bounded=True)
        self.begun = False  # whether a record follows those before the first snapshot
        self._records = 0

    def observe(self, record: Record) -> list[str]:
        """Add the next record; return its problems."""
        self._records += 1
        problems = list(self._problems(record))
        self.begun |= not isinstance(record, StartRecord | JoinedRecord)
        self.state.apply(record)
        return problems

    def _problems(self, record: Record) -> Iterator[str]:
        state = self.state
        if isinstance(record, StartRecord) != (self._records == 1):
            yield "the start record must be the first, and the only one"
        if isinstance(record, StartRecord):
            return
        if state.finished:
            yield "it follows the end record"
        if record.time < state.time:
            yield f"its time {record.time} is before {state.time}, that of an earlier record"
        if isinstance(record, EvaluationRecord):  # it has the event at which it began
            if record.event > state.events:
                yield f"its event is {record.event}, but the last event was {state.events}"
            return
        event = state.events + isinstance(record, ArrivalRecord | RejectedRecord)
        if record.event != event:
            yield f"its event is {record.event} instead of {event}"


@dataclass
class _LogState:
    """The state of the federation at the position of a snapshot, according to the log."""

    event: int
    accepted: int
    members: dict[str, Mapping[str, int]]
    later: list[ArrivalRecord] = field(default_factory=list)  # arrivals after it


class _CheckedLog(NamedTuple):
    """The check of a log, and what the other checks need to know."""

    check: Check
    states: dict[Position, _LogState]  # at the given positions
    begun: bool  # whether training has begun, so that there must be a snapshot
    rolled_back: bool  # whether the log has a rollback after the last of the given positions


def _check_log(log: Path, positions: list[Position]) -> _CheckedLog:
    """Verify the log; `positions` are those of the snapshots."""
    check, chain, state = Check("log records"), Chain(remedy=REMEDY), _Invariants()
    log_states: dict[Position, _LogState] = {}
    rolled_back = False
    try:
        with log.open("rb") as file:
            for line in file:
                if is_cut_off(line):
                    check.remark = "the next start removes an incomplete last line"
                    break
                place = chain.location(log)
                record = chain.decode(line, log)
                check.count += 1
                for problem in state.observe(record):
                    check.problems.append(f"{place}: {problem}")
                if isinstance(record, NoteRecord) and record.about == "roll-back":
                    rolled_back = True
                if isinstance(record, ArrivalRecord):
                    for log_state in list(log_states.values())[-2:]:
                        log_state.later.append(record)
                if chain.position in positions:
                    rolled_back = False
                    known = state.state
                    members = {str(site): known.counts[site] for site in known.members}
                    log_states[chain.position] = _LogState(known.events, known.accepted, members)
    except BadInput as problem:
        check.problems.append(str(problem))
    return _CheckedLog(check, log_states, state.begun, rolled_back)


@dataclass
class _StoredSnapshot:
    """A snapshot with correct checksums."""

    found: VerifiedFolder
    state: FederationState
    model: Any
    log: Position
    updates: list[int]
    tensors: list[Tensor]


def _read_snapshot(found: VerifiedFolder | BadInput) -> _StoredSnapshot | str:
    """Read a snapshot without its strategy's state; return a text if it is damaged."""
    if isinstance(found, BadInput):
        return str(found)
    tree, arrays = snapshot.read(found.path)
    try:
        state: FederationState = snapshot.unpack(FederationState, tree["state"], arrays)
        facts = found.metadata
        return _StoredSnapshot(
            found,
            state,
            arrays[tree["model"]["array"]],
            Position(*facts["log"]),
            list(facts["updates"]),
            [Tensor(name, tuple(shape), *rest) for name, shape, *rest in facts["tensors"]],
        )
    except (KeyError, TypeError, ValueError) as problem:
        return f"{found.path} is not a valid snapshot ({problem!r}); {REMEDY}"


def _disagreements(one: _StoredSnapshot, log_state: _LogState | None) -> Iterator[str]:
    """Yield the disagreements of a snapshot with the log and with the model's tensors."""
    path, state = one.found.path, one.state
    if log_state is None:
        yield f"{path} belongs to another log: its first {one.log.lines} lines differ"
        return
    for what, own, logged in (
        ("event", state.event, log_state.event),
        ("accepted updates", state.accepted, log_state.accepted),
        ("members", {k: without_zeros(own) for k, own in state.counts.items()}, log_state.members),
    ):
        if own != logged:
            yield f"{path} and the log disagree on the {what}: {own!r:.60}, {logged!r:.60}"
    for what in ("awaiting_model", "norms"):
        if unknown := sorted(set(getattr(state, what)) - set(state.counts)):
            yield f"{path} has {what} of {unknown[0]!r}, which is not a member"
    size = sum(prod(tensor.shape) for tensor in one.tensors)
    if one.model.shape != (size,):
        yield f"{path}: its model has {one.model.size} numbers, but its tensors have {size}"
    if not np.isfinite(one.model).all():
        yield f"{path}: its model has NaN or infinite values"


def _check_updates(
    folder: Path,
    snapshots: list[_StoredSnapshot],
    last: list[_StoredSnapshot],
    log_states: Mapping[Position, _LogState],
) -> Check:
    """Verify all updates, and that those are present that a replay of the last snapshots needs."""
    journal, check = Journal(folder / "updates"), Check("updates")
    read: dict[int, tuple[str, float]] = {}
    for event in journal.events():
        check.count += 1
        try:
            update, facts = journal.read(event)
            read[event] = str(update.client), facts.time
        except BadInput as problem:
            check.problems.append(str(problem))
    missing = {event: one.found.path.name for one in snapshots for event in one.updates}
    for one in last:
        for record in log_states[one.log].later if one.log in log_states else ():
            missing[record.event] = "the log"
            client, time = own = read.get(record.event, (str(record.client), record.time))
            if own != (str(record.client), record.time):
                check.problems.append(
                    f"update {record.event} is from {client!r} at time {time}, but the log has "
                    f"{record.client!r} at time {record.time}; {REMEDY}"
                )
    known = set(journal.events())
    for event, needed_by in sorted(missing.items()):
        if event not in known:
            check.problems.append(f"update {event}, which {needed_by} needs, is missing; {REMEDY}")
    return check


def _check_replay(folder: Path, snapshots: list[_StoredSnapshot]) -> Check:
    """Replay from each of the last snapshots to the next one, or to the log's end."""
    check = Check("replays to the bit")
    if not snapshots:
        return check
    facts = snapshots[-1].found.metadata["strategy"]
    if str(facts["name"]) not in CATALOG:
        check.remark = f"skipped: {facts['name']} is not a strategy of this library"
        return check
    try:
        members = len(snapshots[-1].state.counts)
        store, state_type = stored_federation(folder, facts, snapshots[-1].tensors, members)
    except BadInput as problem:
        check.problems.append(str(problem))
        return check
    try:
        for one, following in pairwise([*snapshots, None]):
            assert one is not None
            replayed = store.restore(
                store.snapshots.load(one.found, state_type),
                None if following is None else following.log,
            )
            check.count += 1
            check.problems += [
                f"replaying {one.found.path.name} does not reproduce the record of arrival {event}"
                for event in replayed.unlike
            ]
            if following is None:
                continue
            loaded = store.snapshots.load(following.found, state_type)
            if _packed(store.strategy_state, store.state) != _packed(
                loaded.strategy_state, loaded.state
            ):
                check.problems.append(
                    f"replaying {one.found.path.name} does not reproduce {following.found.path}"
                )
    except BadInput as problem:
        check.problems.append(str(problem))
    finally:
        store.log.close()
    return check


def stored_federation(
    folder: Path, facts: Mapping[str, Any], tensors: list[Tensor], members: int
) -> tuple[FederationStore, type[State]]:
    """Open the folder of a stopped server with the strategy that its snapshots name.

    Args:
        folder: The folder.
        facts: The name and the settings of the strategy.
        tensors: The tensors of the model.
        members: The number of sites.

    """
    method = CATALOG[str(facts["name"])]
    own = {name: value for name, value in facts.items() if name != "name"}
    strategy = method.factory(**checked_settings(method.factory, own, "strategy"))
    layout = _layout(tensors)
    identity = FederationIdentity(facts, {}, tensors, layout)
    strategy = with_statistics(strategy, layout)
    fewest = max(members, 1, strategy.needs.min_clients)
    state_type = state_type_of(strategy, fewest, layout)
    return FederationStore(folder, strategy, identity, lambda: 0.0), state_type


def _layout(tensors: list[Tensor]) -> Layout:
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]] = {"parameter": [], "statistic": []}
    for tensor in tensors:
        kinds[tensor.kind].append((tensor.name, tensor.shape))
    return Layout.of(kinds["parameter"], kinds["statistic"])


def _packed(strategy_state: Any, state: FederationState) -> tuple[str, dict[str, bytes]]:
    """Return both states as text and bytes, without the time at which a snapshot was written."""
    arrays = snapshot.Arrays()
    tree = json.dumps(snapshot.pack([strategy_state, replace(state, clock=0.0)], arrays))
    return tree, {name: array.tobytes() for name, array in arrays.items()}


def _check_models(folder: Path, snapshots: list[_StoredSnapshot]) -> Check:
    """Verify the model files."""
    check = Check("model files")
    for name in (snapshot.MODEL, snapshot.BEST):
        path = folder / name
        if not path.exists() or not snapshots:
            continue
        check.count += 1
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as problem:
            check.problems.append(f"{path} cannot be read ({problem}); {REMEDY}")
            continue
        for tensor in snapshots[-1].tensors:
            found = tensors.get(tensor.name)
            if found is None or found.shape != tensor.shape:
                check.problems.append(f"{path} does not have {tensor}")
            elif not np.isfinite(np.asarray(found, np.float64)).all():
                check.problems.append(f"{path}: {tensor.name!r} has NaN or infinite values")
    return check


def _check_lists(folder: Path) -> Check:
    """Verify the lists of revoked sites and of discarded updates."""
    check = Check("lists of sites")
    for name, read in ((REVOKED, read_revoked), (DISCARDED, discarded_updates)):
        check.count += (folder / name).exists()
        try:
            read(folder)
        except BadInput as problem:
            check.problems.append(str(problem))
    return check
