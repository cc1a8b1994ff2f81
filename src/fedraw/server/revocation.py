"""`fedraw server revoke`: sites that may not take part, in a file that a running server follows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from fedraw.errors import BadInput, nearest
from fedraw.eventlog.log_file import LOG, read_log
from fedraw.eventlog.records import JoinedRecord
from fedraw.storage.files import atomic_write

REVOKED = "revoked.json"


def read_revoked(folder: Path) -> dict[str, str]:
    """The revoked sites of a federation, and since when each is."""
    path = folder / REVOKED
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(since, str) for since in found.values()):
        raise BadInput(
            f"{path} cannot be read as a list of revoked sites; restore it from a backup, or "
            "remove it and revoke the sites again"
        )
    return found


def revoke(folder: Path, site: str, *, undo: bool = False) -> dict[str, str]:
    """Keep a site out of a federation from now on, or let it in again; return all revoked sites.

    A running server follows within a moment: a member that is revoked leaves, and what it still
    sends does not count. What it sent before stays in the model.
    """
    if not (folder / LOG).is_file():
        raise BadInput(f"{folder} has no {LOG}; name the folder of a server")
    revoked = read_revoked(folder)
    if undo:
        if site not in revoked:
            raise BadInput(f"{site!r} is not revoked; {nearest(site, revoked)}")
        del revoked[site]
    else:
        records = read_log(folder / LOG, allow_cut_off=True)
        known = {str(record.client) for record in records if isinstance(record, JoinedRecord)}
        if site not in known:
            raise BadInput(
                f"{site!r} has never been a site of {folder}; {nearest(site, known)} To keep out a "
                "site that has not come yet, set `sites`"
            )
        revoked.setdefault(site, datetime.now(UTC).isoformat(timespec="seconds"))
    content = json.dumps(revoked, indent=2) + "\n"
    atomic_write(folder / REVOKED, content.encode(), private=True)
    return revoked


class RevokedSites:
    """The revoked sites, as their file says at the moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int] | None = None
        self._sites: frozenset[str] = frozenset()

    @property
    def sites(self) -> frozenset[str]:
        """The names; a file that was made unreadable is a BadInput."""
        try:
            found = (self._folder / REVOKED).stat()
            stamp = (found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            self._sites = frozenset(read_revoked(self._folder))
            self._stamp = stamp
        return self._sites
