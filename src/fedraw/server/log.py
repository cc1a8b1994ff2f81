"""The event log of a server that may stop at any byte, on a disk that may be full."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

from fedraw.core.text import one_line
from fedraw.core.update import Update
from fedraw.errors import BadInput, FolderChanged
from fedraw.eventlog.log_file import LOG, Chain, Position, read_log, require_continuation
from fedraw.eventlog.records import (
    ArrivalRecord,
    ContinuedRecord,
    Record,
    ScoresRecord,
    StartRecord,
    from_fields,
)
from fedraw.eventlog.segments import log_size, open_log, parts_of, segment
from fedraw.server.journal import ArrivalFacts
from fedraw.storage.files import PRIVATE_FILE, make_private_folder, private_opener, sync
from fedraw.storage.lock import FolderLock
from fedraw.strategies.protocol import State

# The remedy for a log that was moved or changed.
PUT_BACK = (
    "the server rotates its log by itself: put the whole file back (for example from "
    "events.jsonl.1), exempt it from other log rotation, and start the server again"
)
RESTORE = "restore the folder from a backup, or set another folder to start anew"
# A file of the log that has reached this size is continued in the next one.
SEGMENT_BYTES = 1 << 26
# A line that continues the log has fewer bytes.
LONGEST_CONTINUED = 256


def require_server_folder(folder: Path) -> None:
    """Refuse a folder without an event log, and the folder of a simulation."""
    if not (folder / LOG).is_file():
        raise BadInput(f"{folder} has no {LOG}; name the folder of a server")
    try:
        first = next(read_log(folder / LOG, allow_cut_off=True), None)
    except BadInput:
        return  # the caller finds the damage
    if isinstance(first, StartRecord) and not first.is_server:
        raise BadInput(f"{folder} is a run of a simulation; name the folder of a server")


class ServerLog:
    """Appends to `events.jsonl`; records that the disk does not take now are written later.

    The log locks its folder, and nobody else may change the file meanwhile. Before anything is
    written, the file must still be the one that was opened, with the length that this process left.
    `rotate` continues a log in the next numbered file (`eventlog.segments`) once the last file has
    `segment_bytes`.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = folder / LOG
        self._segment_bytes = segment_bytes
        try:
            make_private_folder(folder)
            self._lock = FolderLock(folder)
            try:
                self._lock.path.chmod(PRIVATE_FILE)
                parts = parts_of(self.path)
                self._open(max(1, len(parts)), sum(size for _, size in parts[:-1]))
            except OSError:
                self._lock.close()
                raise
        except OSError as problem:
            raise BadInput(
                f"cannot write to {folder}: {problem.strerror}; set another folder"
            ) from None
        self._waiting = b""
        self._chain = Chain(remedy=RESTORE)

    def _open(self, number: int, start: int) -> None:
        """Open the file with this number, which begins after `start` bytes of the log."""
        self._number, self._start = number, start
        self._current = segment(self.path, number)
        self._file = open(self._current, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
        self._opened = os.fstat(self._file.fileno())
        self._length = start + self._opened.st_size

    def __len__(self) -> int:
        """Bytes on disk, in all files."""
        return self._length

    def check(self) -> None:
        """Raise FolderChanged if anyone else has touched the log or the lock."""
        if not self._lock.is_intact:
            raise FolderChanged(
                f"{self._lock.path} was removed or replaced while this server was running, so a "
                "second server could have written to the folder; start the server again"
            )
        own = self._length - self._start
        try:
            found = self._current.stat()
        except FileNotFoundError:
            found = None
        if found is None or not os.path.samestat(found, self._opened):
            what = "was renamed, removed or replaced"
        elif found.st_size != own:
            what = f"was changed (it has {found.st_size} bytes instead of {own})"
        else:
            return
        raise FolderChanged(f"{self._current} {what} while this server was running; {PUT_BACK}")

    def note(self, record: Record) -> None:
        """Write the record if the disk allows it, otherwise later."""
        self._waiting += self._chain.encode(record)
        try:
            self.flush()
        except OSError:
            return

    def commit(self, record: Record) -> None:
        """Write the record to disk; after an OSError, the log is as it was before."""
        self.flush()
        before = self._chain.position
        line = self._chain.encode(record)
        try:
            while line:
                line = line[self._append(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._cut(before)
            raise

    def flush(self) -> None:
        """Write the records that are still waiting, oldest first."""
        self.check()
        while self._waiting:
            self._waiting = self._waiting[self._append(self._waiting) :]

    def to_disk(self) -> Position:
        """Make sure that everything written survives a crash; return where the log ends."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._chain.position

    def rotate(self, event: int, time: float) -> None:
        """Continue in the next file if the last one is full; after an OSError nothing has changed.

        The next file is on disk, empty, before the record that leads to it is. So whenever the
        process ends, a file that ends with this record has a successor, and one that does not is
        the last.
        """
        self.to_disk()
        if log_size(self.path) != self._length:
            raise FolderChanged(
                f"a file of {self.path} was changed while this server was running; {PUT_BACK}"
            )
        if self._length - self._start < self._segment_bytes:
            return
        following = segment(self.path, self._number + 1)
        with open(following, "ab", opener=private_opener):
            pass
        sync(following.parent)
        self.commit(ContinuedRecord(event=event, time=time, segment=self._number + 1))
        self._file.close()
        self._open(self._number + 1, self._length)

    def verify(
        self, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Record]:
        """The records since a position, all verified; the next record continues them.

        A process that was killed may have left a part of a line. It does not count, because nothing
        relied on it; `cut_torn_line` removes it.
        """
        for _ in read_log(self.path, until=since or Position(), remedy=RESTORE):
            pass
        self._chain.position = since or Position()
        with open_log(self.path) as file:
            file.seek(self._chain.position.length)
            for line in file:
                if until is not None and self._chain.position.length >= until.length:
                    return
                if not line.endswith(b"\n"):
                    self._refuse_other_end(line)
                    break
                yield self._chain.decode(line, self.path)
        require_continuation(self.path, self._last_of_file(), RESTORE)

    def check_format(self) -> None:
        """Refuse a log of another format, or one whose first line is damaged."""
        next(read_log(self.path, remedy=RESTORE, allow_cut_off=True), None)

    def cut_torn_line(self) -> None:
        """Cut the log after the last record that was verified, and go on where it continues."""
        self._cut(self._chain.position)
        last = self._last_of_file()
        if isinstance(last, ContinuedRecord):
            self._file.close()
            self._open(last.segment, self._length)

    def clear(self) -> None:
        """Remove all records."""
        self.check()
        self._waiting = b""
        self._cut(Position())

    def close(self) -> None:
        """Close the file and let other processes have the folder."""
        self._file.close()
        self._lock.close()

    def _last_of_file(self) -> Record | None:
        """The last verified record of the last file, if it is one that continues the log."""
        own = self._chain.position.length - self._start
        with self._current.open("rb") as file:
            file.seek(max(0, own - LONGEST_CONTINUED))
            lines = file.read(min(own, LONGEST_CONTINUED)).splitlines()
        if not lines or not lines[-1].startswith(b'{"kind":"continued"'):
            return None
        fields = json.loads(lines[-1])
        del fields["digest"]
        return from_fields(fields)

    def _refuse_other_end(self, line: bytes) -> None:
        """Refuse a whole record that ends in something else than a line break: it was altered."""
        try:
            Chain(self._chain.position).decode(line[:-1] + b"\n", self.path)
        except BadInput:
            return
        raise BadInput(f"{self._chain.place(self.path)} was altered at its end; {RESTORE}")

    def _cut(self, position: Position) -> None:
        os.ftruncate(self._file.fileno(), position.length - self._start)
        self._length, self._chain.position = position.length, position

    def _append(self, data: bytes) -> int:
        """Write to the file; return how many bytes the disk took."""
        written = self._file.write(data) or 0
        self._length += written
        return written


# In a federation of more sites, a change of members logs the score of the changed site only.
# Otherwise the log would grow with the square of the number of sites.
MOST_SCORES = 50
# The most characters of a reason in the log; a site may have chosen most of them.
LONGEST_REASON = 500


def arrival_record(
    event: int, update: Update, flight: ArrivalFacts, before: int, state: State
) -> ArrivalRecord:
    """The record of an accepted update; `before` is the version that it met."""
    contents, aggregated = state.contents, state.version > before
    return ArrivalRecord(
        event=event,
        time=flight.time,
        client=update.client,
        start_time=flight.start_time,
        start_version=update.start_version,
        version=state.version,
        staleness_events=event - flight.start_event,
        staleness_versions=before - update.start_version,
        aggregated=aggregated,
        buffer=list(contents.clients),
        # JSON has no number for a weight of a user's own strategy that is not finite.
        weights=[w if isfinite(w) else None for w in contents.weights] if aggregated else [],
        norm=flight.norm,
        metrics=flight.metrics,
    )


def scores_record(
    event: int, time: float, cause: str, before: Mapping[str, float], after: Mapping[str, float]
) -> ScoresRecord:
    """The record of the scores that a change of members has changed."""
    changed = [site for site in {**before, **after} if before.get(site) != after.get(site)]
    return ScoresRecord(
        event=event,
        time=time,
        cause=cause,
        before={site: before.get(site) for site in changed},
        after={site: after.get(site) for site in changed},
    )


def short(text: str) -> str:
    """One printable line of at most LONGEST_REASON characters, or a little more once escaped."""
    kept = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    return one_line(kept)


def scored_sites(state: State, site: str) -> list[str]:
    """The sites whose scores a change of `site` logs: all members, or only `site` among many."""
    federation = state.federation
    members = [str(member) for member in federation] if len(federation) <= MOST_SCORES else []
    return list(dict.fromkeys([*members, site]))


def scores_of(state: State, sites: Sequence[str]) -> dict[str, float]:
    """The rarity scores of those sites that are members."""
    federation = state.federation
    return {site: federation.score(site) for site in sites if site in federation}
