"""The event log of a server, which survives a kill at any byte and a full disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedraw.core.text import one_line
from fedraw.errors import BadInput, FolderChanged, FolderUnavailable
from fedraw.eventlog.log_file import (
    LOG,
    Chain,
    Position,
    read_log,
    require_one_file,
    verify_log,
)
from fedraw.eventlog.records import Record, ScoresRecord, StartRecord
from fedraw.storage.files import PRIVATE_FILE, make_private_folder, private_opener
from fedraw.storage.lock import FolderLock
from fedraw.strategies.protocol import State

# The remedy for a log that was moved or changed.
PUT_BACK = (
    "put the whole file back (for example from events.jsonl.1), exempt it from log rotation, and "
    "start the server again"
)
RESTORE = "restore the folder from a backup, or set another folder to start again"


def require_server_folder(folder: Path) -> None:
    """Refuse a folder without an event log or with several files of it, and a simulation's."""
    if not (folder / LOG).is_file():
        raise BadInput(f"{folder} has no {LOG}; name the folder of a server")
    require_one_file(folder / LOG)
    try:
        first = next(read_log(folder / LOG, allow_cut_off=True), None)
    except BadInput:
        return  # the caller reports the damage
    if isinstance(first, StartRecord) and not first.is_server:
        raise BadInput(f"{folder} is a run of a simulation; name the folder of a server")


class ServerLog:
    """Appends records to `events.jsonl`; on a full disk, records wait in memory.

    The log locks its folder, and no other process may change the file meanwhile. Before each write,
    the file must still be the one that was opened, with the length that this process left.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        require_one_file(self.path)
        try:
            make_private_folder(folder)
            self._lock = FolderLock(folder)
            try:
                self._lock.path.chmod(PRIVATE_FILE)
                self._file = open(self.path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
            except OSError:
                self._lock.close()
                raise
        except OSError as problem:
            raise FolderUnavailable(
                f"cannot write to {folder}: {problem.strerror}; set another folder"
            ) from None
        self._opened = os.fstat(self._file.fileno())
        self._length = self._opened.st_size
        self._unwritten = b""
        self._chain = Chain(remedy=RESTORE)

    def __len__(self) -> int:
        """Return the number of bytes on disk."""
        return self._length

    def check(self) -> None:
        """Raise FolderChanged if another process has changed the log or the lock."""
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
        """Write the record now, or later if the disk is full."""
        self._unwritten += self._chain.encode(record)
        try:
            self.flush()
        except OSError:
            return

    def commit(self, record: Record) -> None:
        """Write the record to disk before returning; an OSError leaves the log unchanged."""
        self.flush()
        before = self._chain.position
        line = self._chain.encode(record)
        try:
            while line:
                line = line[self._append(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._truncate(before)
            raise

    def flush(self) -> None:
        """Write the records that wait in memory, oldest first."""
        self.check()
        while self._unwritten:
            self._unwritten = self._unwritten[self._append(self._unwritten) :]

    def to_disk(self) -> Position:
        """Flush everything written to the disk; return the position at which the log ends."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._chain.position

    def verify(
        self, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Record]:
        """Yield the verified records since a position; the next written record continues them.

        A killed process may have left an incomplete last line. It is ignored, because its record
        never took effect; `remove_torn_line` removes it.
        """
        start = since or Position()
        verify_log(self.path, start, RESTORE)
        self._chain.position = start
        with self.path.open("rb") as file:
            file.seek(self._chain.position.length)
            for line in file:
                if until is not None and self._chain.position.length >= until.length:
                    return
                if not line.endswith(b"\n"):
                    self._refuse_other_end(line)
                    break
                yield self._chain.decode(line, self.path)

    def first_record(self) -> Record | None:
        """Return the first record, or None in an empty log; refuse a log of another format."""
        return next(read_log(self.path, remedy=RESTORE, allow_cut_off=True), None)

    def remove_torn_line(self) -> None:
        """Truncate the log after the last verified record."""
        self._truncate(self._chain.position)

    def clear(self) -> None:
        """Remove all records."""
        self.check()
        self._unwritten = b""
        self._truncate(Position())

    def close(self) -> None:
        """Close the file and unlock the folder."""
        self._file.close()
        self._lock.close()

    def _refuse_other_end(self, line: bytes) -> None:
        """Refuse a complete record without its line break, because it was altered."""
        try:
            Chain(self._chain.position).decode(line[:-1] + b"\n", self.path)
        except BadInput:
            return
        raise BadInput(f"{self._chain.location(self.path)} was altered at its end; {RESTORE}")

    def _truncate(self, position: Position) -> None:
        os.ftruncate(self._file.fileno(), position.length)
        self._length, self._chain.position = position.length, position

    def _append(self, data: bytes) -> int:
        """Write to the file; return the number of bytes that were written."""
        written = self._file.write(data) or 0
        self._length += written
        return written


# In a federation with more sites, a change of members logs the score of the changed site only.
# Otherwise the log would grow with the square of the number of sites.
MOST_SCORES = 50
# The most characters of a reason in the log; a reason may quote a site's text.
LONGEST_REASON = 500


def scores_record(
    event: int, time: float, cause: str, before: Mapping[str, float], after: Mapping[str, float]
) -> ScoresRecord:
    """Return the record of the scores that a change of members has changed."""
    changed = [site for site in {**before, **after} if before.get(site) != after.get(site)]
    return ScoresRecord(
        event=event,
        time=time,
        cause=cause,
        before={site: before.get(site) for site in changed},
        after={site: after.get(site) for site in changed},
    )


def log_text(text: str) -> str:
    """Return the text as one printable line, truncated to LONGEST_REASON characters."""
    return one_line(text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…")


def scored_sites(state: State, site: str) -> list[str]:
    """Return the sites whose scores a change of `site` logs: all members, or only `site`."""
    federation = state.federation
    members = [str(member) for member in federation] if len(federation) <= MOST_SCORES else []
    return list(dict.fromkeys([*members, site]))


def scores_of(state: State, sites: Sequence[str]) -> dict[str, float]:
    """Return the rarity scores of the given sites that are members."""
    federation = state.federation
    return {site: federation.score(site) for site in sites if site in federation}
