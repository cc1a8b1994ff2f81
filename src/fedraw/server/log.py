"""The event log of a server that may stop at any byte, on a disk that may be full."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

from fedraw.core.text import one_line
from fedraw.core.update import Update
from fedraw.errors import BadInput, FolderChanged
from fedraw.eventlog.log_file import LOG, Chain, Position, read_log
from fedraw.eventlog.records import ArrivalRecord, Record, ScoresRecord
from fedraw.server.journal import Flight
from fedraw.storage.files import PRIVATE_FILE, make_private_folder, private_opener
from fedraw.storage.lock import FolderLock
from fedraw.strategies.protocol import State

# The remedy for a log that was moved or changed.
PUT_BACK = (
    "the log is the federation's record, not a text to rotate: put the whole file back (for "
    "example from events.jsonl.1), exempt it from log rotation, and start the server again"
)
RESTORE = "restore the folder from a backup, or set another folder to start anew"


class ServerLog:
    """Appends to `events.jsonl`; records that the disk does not take now are written later.

    The log locks its folder, and nobody else may change the file meanwhile. Before anything is
    written, the file must still be the one that was opened, with the length that this process left.
    """

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / LOG
        try:
            make_private_folder(path.parent)
            self._lock = FolderLock(path.parent)
            try:
                self._lock.path.chmod(PRIVATE_FILE)
                self._file = open(path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
            except OSError:
                self._lock.close()
                raise
        except OSError as problem:
            raise BadInput(
                f"cannot write to {path.parent}: {problem.strerror}; set another folder"
            ) from None
        self._opened = os.fstat(self._file.fileno())
        self._length = self._opened.st_size
        self._waiting = b""
        self._chain = Chain(remedy=RESTORE)

    def __len__(self) -> int:
        """Bytes on disk."""
        return self._length

    def check(self) -> None:
        """Raise FolderChanged if anyone else has touched the log or the lock."""
        if not self._lock.is_intact:
            raise FolderChanged(
                f"{self._lock.path} was removed or replaced while this server was running, so a "
                "second server could have written to the folder; start the server again"
            )
        try:
            found = self.path.stat()
        except FileNotFoundError:
            found = None
        if found is None or not os.path.samestat(found, self._opened):
            what = "was renamed, removed or replaced"
        elif found.st_size != self._length:
            what = f"was changed (it has {found.st_size} bytes instead of {self._length})"
        else:
            return
        raise FolderChanged(f"{self.path} {what} while this server was running; {PUT_BACK}")

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

    def verify(self, since: Position | None = None) -> Iterator[Record]:
        """The records since a position, all verified; the next record continues them.

        A process that was killed may have left a part of a line. It does not count, because nothing
        relied on it; `cut_torn_line` removes it.
        """
        for _ in read_log(self.path, until=since or Position(), remedy=RESTORE):
            pass
        self._chain.position = since or Position()
        with self.path.open("rb") as file:
            file.seek(self._chain.position.length)
            for line in file:
                if not line.endswith(b"\n"):
                    self._refuse_other_end(line)
                    return
                yield self._chain.decode(line, self.path)

    def check_format(self) -> None:
        """Refuse a log of another format, or one whose first line is damaged."""
        next(read_log(self.path, remedy=RESTORE, allow_cut_off=True), None)

    def cut_torn_line(self) -> None:
        """Cut the log after the last record that was verified."""
        self._cut(self._chain.position)

    def clear(self) -> None:
        """Remove all records."""
        self.check()
        self._waiting = b""
        self._cut(Position())

    def close(self) -> None:
        """Close the file and let other processes have the folder."""
        self._file.close()
        self._lock.close()

    def _refuse_other_end(self, line: bytes) -> None:
        """Refuse a whole record that ends in something else than a line break: it was altered."""
        try:
            Chain(self._chain.position).decode(line[:-1] + b"\n", self.path)
        except BadInput:
            return
        number = self._chain.position.lines + 1
        raise BadInput(f"{self.path}, line {number} was altered at its end; {RESTORE}")

    def _cut(self, position: Position) -> None:
        os.ftruncate(self._file.fileno(), position.length)
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
    event: int, update: Update, flight: Flight, before: int, state: State
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
