"""`fedraw server rollback` and `backup`: restore or copy an earlier state of a federation."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, Chain, Position, read_log, verify_log
from fedraw.eventlog.records import ArrivalRecord, NoteRecord, RestartedRecord, StartRecord
from fedraw.server.discarded import DISCARDED, add_discarded
from fedraw.server.journal import Journal
from fedraw.server.log import require_server_folder
from fedraw.server.revocation import REVOKED
from fedraw.server.snapshots import snapshot_folders
from fedraw.storage.files import PARTIAL, make_private_folder, private_opener, sync, sync_tree
from fedraw.storage.lock import LOCK, FolderLock
from fedraw.storage.numbered_folders import VerifiedFolder
from fedraw.storage.snapshot import BEST, CONSTANTS, MODEL, BestFacts

RUNNING = "stop its server first"
REMEDY = "restore the folder from a backup"
# The number of attempts at a backup while a running server removes the snapshot being copied.
ATTEMPTS = 5


@dataclass(frozen=True)
class RestorePoint:
    """A state of the federation that can be restored."""

    version: int
    event: int
    time: float  # in the log's time
    epoch: float  # unix seconds at the log's time 0
    log: Position  # the end of the log at that state
    snapshot: VerifiedFolder  # the snapshot from which a restart continues

    @property
    def wall(self) -> float:
        """The time in unix seconds."""
        return self.epoch + self.time

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.wall, UTC).isoformat(sep=" ", timespec="seconds")
        return f"version {self.version} (event {self.event}, {when})"


def rollback(folder: Path, to: str) -> tuple[RestorePoint, Path]:
    """Roll a federation back to its newest state at or before a version or a time.

    The function first copies the whole folder next to itself. Then it removes the snapshots,
    updates and log records after that state, and adds a note to the log. If it is interrupted,
    either the folder is unchanged, or no server starts in it until the same command completes the
    rollback.

    Args:
        folder: The folder of a server that is not running.
        to: A version of the model, or a time in ISO 8601, in UTC unless it has another time zone.

    Returns:
        The restored state, and the copy of the previous folder.

    """
    allowed = _parse_limit(to)
    require_server_folder(folder)
    lock = FolderLock(folder, RUNNING)
    try:
        known = restore_points(folder)
        at = next((one for one in known if allowed(one)), None)
        if at is None:
            raise BadInput(
                f"--to {to}: {folder} has no state that old (the oldest one is {known[-1]}); name "
                "a later one, or restore a backup"
            )
        verify_log(folder / LOG, at.log, REMEDY)
        at = _newest_replayable(folder, at, allowed)
        if at.log.length == (folder / LOG).stat().st_size:
            raise BadInput(f"--to {to}: {folder} is already at {at}; name an earlier one")
        copy = _copy_folder(folder)
        # Before the removal: if it is interrupted, updates count twice rather than not at all.
        add_discarded(folder, *_updates_after(folder, at))
        _remove_after(folder, at)
        reason = f"rolled back to {at} by the operator; {copy.name} is the previous folder"
        _append_note(folder, at, reason)
    finally:
        lock.close()
    return at, copy


def restore_points(folder: Path) -> list[RestorePoint]:
    """Return the states of all undamaged snapshots, newest first; there is at least one."""
    require_server_folder(folder)
    found = snapshot_folders(folder / "checkpoint").read_all()
    points = [_restore_point(one) for one in found if isinstance(one, VerifiedFolder)]
    if not points:
        raise BadInput(
            f"{folder} has no undamaged snapshot; wait until training has begun, or {REMEDY}"
        )
    return points


def backup(folder: Path, out: Path) -> RestorePoint:
    """Copy the current state of a federation; its server may be running.

    The copy has the newest snapshot and everything that the log has recorded since then.

    Args:
        folder: The folder of a server.
        out: The folder to create, outside the server's; a server can be started in it.

    """
    if out.exists():
        raise BadInput(f"{out} exists; name a folder that does not exist yet")
    if out.resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{out} is in {folder}; name a folder outside it")
    draft = out.with_name(f"{out.name}{PARTIAL}")
    try:
        at = _copy_newest_state(folder, draft)
        sync_tree(draft)
        draft.rename(out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(out.absolute().parent)
    return at


def _copy_newest_state(folder: Path, out: Path) -> RestorePoint:
    """Copy the newest state that a restart can reach, and verify the log of the copy."""
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(out, ignore_errors=True)
        at = _newest_replayable(folder, restore_points(folder)[0], lambda later: True)
        try:
            _copy_state(folder, at, out)
            break
        except FileNotFoundError as problem:  # the server has removed a file meanwhile
            if attempt == ATTEMPTS:
                raise BadInput(f"{problem.filename} is missing; {REMEDY}") from None
    try:
        verify_log(out / LOG, at.log)
    except BadInput:
        verify_log(folder / LOG, at.log, REMEDY)  # names the damaged line of the server's own file
        raise BadInput(
            f"the copy of {folder / LOG} differs from it; check the disk of {out.parent}, and back "
            "up again"
        ) from None
    return at


def _parse_limit(to: str) -> Callable[[RestorePoint], bool]:
    """Return a function that tells whether a state is at or before the given version or time."""
    if to.isdecimal():
        return lambda at: at.version <= int(to)
    try:
        time = datetime.fromisoformat(to)
    except ValueError:
        raise BadInput(
            f"--to {to!r} is neither a version nor a time; write a number such as 120, or a time "
            "such as 2026-11-17T08:30"
        ) from None
    until = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return lambda at: at.wall <= until


def _restore_point(one: VerifiedFolder) -> RestorePoint:
    facts = one.metadata
    if "version" not in facts:  # a snapshot of an earlier version of fedraw
        tree = json.loads((one.path / "state.json").read_text(encoding="utf-8"))
        inner, state = tree["strategy_state"], tree["state"]
        while "version" not in inner:
            inner = inner["inner"]
        facts |= {"version": inner["version"], "time": state["clock"], "epoch": state["epoch"]}
    own = facts["version"], int(one.path.name), facts["time"], facts["epoch"]
    return RestorePoint(*own, Position(*facts["log"]), one)


def _newest_replayable(
    folder: Path, at: RestorePoint, allowed: Callable[[RestorePoint], bool]
) -> RestorePoint:
    """Return the newest allowed state that a restart from this snapshot can reach.

    The function follows the log while it is undamaged and the journal has its updates.
    """
    kept, log = set(Journal(folder / "updates").events()), folder / LOG
    with suppress(BadInput):
        chain = Chain(at.log)
        with log.open("rb") as file:
            file.seek(at.log.length)
            for line in file:
                record = chain.decode(line, log)
                if isinstance(record, StartRecord):
                    break
                epoch = record.epoch if isinstance(record, RestartedRecord) else at.epoch
                version = at.version
                if isinstance(record, ArrivalRecord):
                    if record.event not in kept:
                        break
                    version = record.version
                following = replace(
                    at,
                    version=version,
                    # An evaluation has the event at which it began.
                    event=max(at.event, record.event),
                    time=record.time,
                    epoch=epoch,
                    log=chain.position,
                )
                if not allowed(following):
                    break
                at = following
    return at


def _copy_folder(folder: Path) -> Path:
    """Copy the folder next to itself, and return the copy."""
    own = folder.absolute()
    names = (own.with_name(f"{own.name}.before-rollback-{number}") for number in count(1))
    copy = next(path for path in names if not path.exists())
    draft = copy.with_name(f"{copy.name}{PARTIAL}")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(folder, draft, ignore=shutil.ignore_patterns(LOCK))
    sync_tree(draft)
    draft.rename(copy)
    sync(copy.parent)
    return copy


def _updates_after(folder: Path, at: RestorePoint) -> tuple[str, Counter[str]]:
    """Return a name for the records after a state, and the number of updates of each site in them.

    The name is the checksum of the first record. Damaged records are skipped, and updates count
    that only the journal has.
    """
    name, clients = "", dict[int, str]()
    with (folder / LOG).open("rb") as file:
        file.seek(at.log.length)
        for line in file:
            name = name or hashlib.sha256(line).hexdigest()[:16]
            with suppress(ValueError, TypeError, LookupError):
                fields = json.loads(line)
                if fields["kind"] == ArrivalRecord.kind:
                    clients[int(fields["event"])] = str(fields["client"])
    journal = Journal(folder / "updates")
    for event in journal.events():
        if event > at.event and event not in clients:
            with suppress(BadInput):
                clients[event] = str(journal.read(event)[0].client)
    return name, Counter(clients.values())


def _remove_after(folder: Path, at: RestorePoint) -> None:
    """Remove everything after a state: first snapshots, then updates, then log records.

    As long as the log has an arrival without its update, no server starts.
    """
    for path in sorted((folder / "checkpoint").iterdir(), reverse=True):
        if path.name > at.snapshot.path.name:
            shutil.rmtree(path)
    sync(folder / "checkpoint")
    journal = Journal(folder / "updates")
    for event in journal.events():
        if event > at.event:
            journal.remove(event)
    sync(folder / "updates")
    (folder / MODEL).unlink(missing_ok=True)
    best = BestFacts.read(folder / BEST)
    if best is not None and best.event > at.event:
        (folder / BEST).unlink()
    os.truncate(folder / LOG, at.log.length)
    sync(folder / LOG)
    sync(folder)


def _append_note(folder: Path, at: RestorePoint, reason: str) -> None:
    """Append a note to a log that ends at this state."""
    note = NoteRecord(event=at.event, time=at.time, reason=reason, about="roll-back")
    line = Chain(at.log).encode(note)
    with open(folder / LOG, "ab", opener=private_opener) as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _copy_state(folder: Path, at: RestorePoint, out: Path) -> None:
    """Copy the files from which a server can continue.

    These are the log, one snapshot, and the updates in its buffer and after it.
    """
    make_private_folder(out)
    with (folder / LOG).open("rb") as file, open(out / LOG, "wb", opener=private_opener) as copy:
        copy.write(file.read(at.log.length))
    snapshot = out / "checkpoint" / at.snapshot.path.name
    for made in (snapshot.parent, snapshot, out / "updates"):
        make_private_folder(made)
    for path in at.snapshot.path.iterdir():
        shutil.copy2(path, snapshot)
    facts, journal = at.snapshot.metadata, Journal(folder / "updates")
    later = read_log(out / LOG, since=Position(*facts["log"]), until=at.log)
    arrivals = [record.event for record in later if isinstance(record, ArrivalRecord)]
    for event in (*facts["updates"], *arrivals):
        shutil.copy2(journal.path(event), out / "updates")
    for name in (CONSTANTS, BEST, MODEL, REVOKED, DISCARDED):
        if (folder / name).exists():
            shutil.copy2(folder / name, out)
