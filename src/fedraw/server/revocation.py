"""`fedraw server revoke`: sites that may not take part, in a file that a running server follows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedraw.errors import BadInput, nearest
from fedraw.eventlog.log_file import LOG, read_log
from fedraw.eventlog.records import JoinedRecord
from fedraw.storage.files import atomic_write

REVOKED = "revoked.json"


@dataclass
class Revoked:
    """Sites that may not take part, each with a time, and the nodes of revoked keys.

    A node is the engine's number for a key. A key that was revoked stays so when its site is let in
    again, which then needs a new key.
    """

    sites: dict[str, str] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)


def read_revoked(folder: Path) -> Revoked:
    """The revoked sites and keys of a federation."""
    path = folder / REVOKED
    try:
        found = Revoked(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Revoked()
    except (OSError, ValueError, TypeError):
        found = None
    if found and isinstance(found.sites, dict) and isinstance(found.nodes, list):
        return found
    raise BadInput(
        f"{path} cannot be read as a list of revoked sites; restore it from a backup, or remove it "
        "and revoke the sites again"
    )


def revoke(folder: Path, site: str, *, undo: bool = False) -> Revoked:
    """Keep a site and its key out of a federation from now on, or let the site in again.

    A running server follows within a moment: a member that is revoked leaves, and what it still
    sends does not count. What it sent before stays in the model. A site that is let in again needs
    a new key, which is how a key is replaced.
    """
    if not (folder / LOG).is_file():
        raise BadInput(f"{folder} has no {LOG}; name the folder of a server")
    revoked = read_revoked(folder)
    if undo:
        if site not in revoked.sites:
            raise BadInput(f"{site!r} is not revoked; {nearest(site, revoked.sites)}")
        del revoked.sites[site]
    else:
        records = read_log(folder / LOG, allow_cut_off=True)
        joined = {str(own.client): own.node for own in records if isinstance(own, JoinedRecord)}
        if site not in joined:
            raise BadInput(
                f"{site!r} has never been a site of {folder}; {nearest(site, joined)} To keep out "
                "a site that has not come yet, set `sites`"
            )
        revoked.sites[site] = datetime.now(UTC).isoformat(timespec="seconds")
        node = joined[site]
        if node is not None and node not in revoked.nodes:
            revoked.nodes.append(node)
    content = json.dumps(asdict(revoked), indent=2) + "\n"
    atomic_write(folder / REVOKED, content.encode(), private=True)
    return revoked


class RevokedSites:
    """The revoked sites and keys, as their file says at the moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int] | None = None
        self._known = Revoked()
        self.look()  # a file that cannot be read is refused before anyone joins

    def look(self) -> Revoked:
        """Read the file if it has changed; one that was made unreadable is a BadInput."""
        try:
            found = (self._folder / REVOKED).stat()
            stamp = (found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            self._known, self._stamp = read_revoked(self._folder), stamp
        return self._known
