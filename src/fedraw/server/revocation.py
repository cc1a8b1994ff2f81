"""`fedraw server revoke`: a file of revoked sites, which a running server follows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedraw.errors import BadInput, nearest
from fedraw.eventlog.log_file import LOG, read_log
from fedraw.eventlog.records import JoinedRecord
from fedraw.server.log import require_server_folder
from fedraw.storage.files import atomic_write

REVOKED = "revoked.json"


@dataclass
class Revoked:
    """The revoked sites, each with the time of its revocation, and the nodes of revoked keys.

    A node is the engine's number for a key. A revoked key stays revoked when its site is admitted
    again; the site then needs a new key.
    """

    sites: dict[str, str] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)


def read_revoked(folder: Path) -> Revoked:
    """Return the revoked sites and keys of a federation."""
    path = folder / REVOKED
    try:
        found = Revoked(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Revoked()
    except (OSError, ValueError, TypeError):
        found = None
    if (
        found
        and isinstance(found.sites, dict)
        and isinstance(found.nodes, list)
        and all(isinstance(node, int) for node in found.nodes)
    ):
        return found
    raise BadInput(
        f"{path} is not a list of revoked sites; restore it from a backup, or remove it and revoke "
        "the sites again"
    )


def revoke(folder: Path, site: str, *, undo: bool = False) -> Revoked:
    """Exclude a site and its key from a federation from now on; with `undo`, admit the site again.

    A running server follows at once: the site leaves, and its later updates do not count. Its
    earlier updates stay in the model. A site that is admitted again needs a new key, so revoking a
    site and admitting it again replaces its key.
    """
    require_server_folder(folder)
    revoked = read_revoked(folder)
    if undo:
        if site not in revoked.sites:
            known = nearest(site, revoked.sites) if revoked.sites else "no site is"
            raise BadInput(f"{site!r} is not revoked; {known}")
        del revoked.sites[site]
    else:
        records = read_log(
            folder / LOG, remedy="restore the folder from a backup", allow_cut_off=True
        )
        joined = {str(own.client): own.node for own in records if isinstance(own, JoinedRecord)}
        if site not in joined:
            raise BadInput(
                f"{site!r} has never been a site of {folder} ({nearest(site, joined)}); to exclude "
                "a site that has not joined yet, set `sites`"
            )
        revoked.sites[site] = datetime.now(UTC).isoformat(timespec="seconds")
        node = joined[site]
        if node is not None and node not in revoked.nodes:
            revoked.nodes.append(node)
    content = json.dumps(asdict(revoked), indent=2) + "\n"
    atomic_write(folder / REVOKED, content.encode(), private=True)
    return revoked


class RevokedSites:
    """The current content of the file of revoked sites and keys."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int] | None = None
        self._known = Revoked()
        self.current()  # refuses an unreadable file before any site joins

    def current(self) -> Revoked:
        """Return the revoked sites and keys, reading the file if it has changed.

        An unreadable file is a BadInput.
        """
        try:
            found = (self._folder / REVOKED).stat()
            stamp = (found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            self._known, self._stamp = read_revoked(self._folder), stamp
        return self._known
