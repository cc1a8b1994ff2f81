"""`fedraw server forget`: removes what a site has sent from a federation that adds up sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedraw.core.types import ClientId
from fedraw.errors import BadInput, nearest
from fedraw.eventlog.log_file import LOG
from fedraw.eventlog.records import NoteRecord
from fedraw.server.log import log_text, require_server_folder
from fedraw.server.models import ModelFiles
from fedraw.server.revocation import REVOKED, read_revoked
from fedraw.server.snapshots import Tensor, snapshot_folders
from fedraw.server.store import FederationStore
from fedraw.server.verification import REMEDY, stored_federation
from fedraw.storage.files import sync
from fedraw.storage.lock import FolderLock
from fedraw.storage.numbered_folders import VerifiedFolder
from fedraw.storage.snapshot import BEST, MODEL
from fedraw.strategies.catalog import CATALOG

RUNNING = "stop its server first"


@runtime_checkable
class ForgettingState(Protocol):
    """The state of a strategy that can remove a client's part from its model exactly."""

    def forget(self, client: ClientId) -> bool:
        """Remove everything that the client has sent; return whether it had sent anything."""
        ...


@dataclass(frozen=True)
class Forgotten:
    """The model's version after a site was forgotten, and what still tells about the site."""

    version: int
    remains: tuple[str, ...]


def forget(folder: Path, site: str) -> Forgotten:
    """Remove the sums of a site from the model, the journal, all snapshots and the model files.

    The model and the totals are then, byte for byte, those of a federation that never heard the
    site. If the function is interrupted, the same call completes it. Methods that train refuse,
    because nobody can say what of a trained model comes from one site.

    Args:
        folder: The folder of a server that is not running.
        site: The name of the site.

    """
    with _opened(folder) as (store, last):
        state, journal = store.strategy_state, store.journal
        assert isinstance(state, ForgettingState)
        senders = {event: str(journal.read(event)[0].client) for event in journal.events()}
        heard = sorted({*map(str, state.contents.clients), *senders.values()})
        if site not in heard:
            known = nearest(site, heard) if heard else "no site has"
            raise BadInput(f"{site!r} has sent nothing to {folder}; {known}")
        if store.state.ended is None:  # the end record must be the last record
            event, words = store.state.event, "has sent was removed by the operator"
            reason = f"everything that {log_text(site)} {words}"
            store.log.commit(NoteRecord(event=event, time=last, client=site, reason=reason))
        state.forget(site)
        store.state.norms.pop(site, None)
        _rewrite_models(store)
        log = store.log.to_disk()
        store.snapshots.replace_all(store.strategy_state, store.state, log, last)
        for event, client in senders.items():  # last, because a repeated call looks for them
            if client == site:
                journal.remove(event)
        return Forgotten(store.strategy_state.version, _remains(folder, site))


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[FederationStore, float]]:
    """Restore a stopped federation; yield it with the time of its last record."""
    require_server_folder(folder)
    FolderLock(folder, RUNNING).close()
    found = list(snapshot_folders(folder / "checkpoint").read_all())
    newest = next((one for one in found if isinstance(one, VerifiedFolder)), None)
    if newest is None:
        raise BadInput(f"{folder} has no undamaged snapshot; {REMEDY}")
    facts = newest.metadata["strategy"]
    stored = newest.metadata["tensors"]
    tensors = [Tensor(name, tuple(shape), *rest) for name, shape, *rest in stored]
    if str(facts["name"]) not in CATALOG:
        raise BadInput(f"{folder} has a strategy that is not of this library: {facts['name']!r}")
    store, state_type = stored_federation(folder, facts, tensors, members=1)
    try:
        if not issubclass(state_type, ForgettingState):
            raise BadInput(
                f"{facts['name']!r} trains a model, and nobody can say what of it comes from one "
                "site; roll back to a state before the site's first update, or train again without "
                "the site"
            )
        restored = store.snapshots.read(state_type)
        assert restored is not None
        replayed = store.restore(restored)
        store.log.remove_torn_line()
        for record in replayed.missing:
            store.log.note(record)
        yield store, replayed.last
    finally:
        store.log.close()


def _rewrite_models(store: FederationStore) -> None:
    """Remove the model files; an ended federation gets its last model anew."""
    for name in (MODEL, BEST):
        (store.folder / name).unlink(missing_ok=True)
    if store.state.ended is not None:
        ModelFiles(store.folder, store.identity.tensors).write(store.strategy_state.model)
    sync(store.folder)


def _remains(folder: Path, site: str) -> tuple[str, ...]:
    """Return what still tells about the site, for the operator to decide."""
    own = folder.absolute()
    remains = [
        f"{folder / LOG}: its name, its label counts, when it sent something, the mean size of its "
        "features, and the metrics of models with its sums"
    ]
    copies = sorted(own.parent.glob(f"{own.name}.before-rollback-*"))
    remains += [f"{copy}: a copy of the folder, with its sums" for copy in copies]
    if site in read_revoked(folder).sites:
        remains.append(f"{folder / REVOKED}: its name")
    remains.append("backups that were made before, and models that were given away")
    return (*remains, "its name in the setting sites, if it is there: the server waits for it")
