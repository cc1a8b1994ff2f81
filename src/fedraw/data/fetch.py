"""Brings a public release to the data root: download, verify, unpack.

ROOT/downloads keeps the archives. One that was put there by hand is used like a downloaded one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedraw.data.download import NotServed, Patience, Say, download, forget
from fedraw.data.progress import Progress
from fedraw.data.releases import Release, Source, damage, find, missing, size_text
from fedraw.data.unpack import unpack
from fedraw.errors import BadInput, FedrawError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class How:
    """`force` downloads and unpacks again; `say` is told what a user may want to read."""

    force: bool = False
    remove_archive: bool = False
    patience: Patience = field(default_factory=Patience)
    say: Say = lambda _: None


def fetch(
    release: str | Release,
    root: Path,
    progress: Progress = lambda *_: None,
    how: How = How(),  # noqa: B008, frozen
) -> bool:
    """Fetch what is not there yet; False if all of it was."""
    wanted = find(release) if isinstance(release, str) else release
    sources = list(wanted.sources) if how.force else missing(wanted, root)
    if not sources:
        return False
    downloads = _downloads(root)
    with _alone_in(downloads):
        _fetch(wanted, sources, root, progress, how)
    return True


def _fetch(
    release: Release, sources: list[Source], root: Path, progress: Progress, how: How
) -> None:
    downloads = root / "downloads"
    _check_room(release, sources, downloads)
    # All downloads first: one that breaks off leaves nothing to unpack twice.
    for source in sources:
        _obtain(release, source, downloads, progress, how)
    for source in sources:
        unpack(source, downloads / source.file, root, progress)
    _check_whole(release, root)
    for source in sources:
        if how.remove_archive or source.kind == "file":
            (downloads / source.file).unlink()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two that append to one part would spoil it; the folder itself is the lock."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BadInput(
            f"another 'fedraw data fetch' is at work in {folder}; let it end, then try again"
        ) from error
    finally:
        os.close(handle)


def _downloads(root: Path) -> Path:
    folder = root / "downloads"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"{folder}: {error.strerror}; give a data folder that can be written to"
        ) from error
    return folder


def _check_room(release: Release, sources: list[Source], downloads: Path) -> None:
    there = sum(_size(downloads / source.file) for source in sources)
    begun = sum(_size(downloads / f"{source.file}.part") for source in sources)
    rest = max(0, sum(source.size for source in sources) - there - begun)
    tables_only = all(source.kind == "file" for source in sources)
    unpacked = sum(source.size for source in sources) if tables_only else release.unpacked
    free = shutil.disk_usage(downloads).free
    if rest + unpacked > free:
        raise FedrawError(
            f"{release.name} needs {size_text(rest)} to download and {size_text(unpacked)} "
            f"unpacked, and {downloads} has {size_text(free)} free; make room or give another "
            "folder with --data"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _obtain(
    release: Release, source: Source, downloads: Path, progress: Progress, how: How
) -> None:
    archive = downloads / source.file
    if how.force:
        archive.unlink(missing_ok=True)
        forget(downloads / f"{source.file}.part")
    if archive.exists():
        return _accept(source, archive, how.say)
    try:
        download(
            source.url,
            archive,
            source.checksum,
            progress=progress,
            say=how.say,
            patience=how.patience,
        )
    except NotServed as error:
        raise FedrawError(f"{error}\n{_by_hand(release, source, downloads)}") from error


def _accept(source: Source, archive: Path, say: Say) -> None:
    wrong = damage(source, archive)
    if wrong is not None:
        raise BadInput(f"{archive}: {wrong}; delete it, or --force downloads it again")
    say(f"{archive} is there and is used")


def _by_hand(release: Release, source: Source, downloads: Path) -> str:
    return (
        f"By hand: download {source.url} where you can (terms: {release.homepage}), put it as "
        f"{source.file} into {downloads.absolute()}, and give the same command again."
    )


def _check_whole(release: Release, root: Path) -> None:
    for source in missing(release, root):
        raise FedrawError(
            f"{root / source.folder}: fewer {source.members} than {release.name} has; "
            f"{source.file} is not the official file, so fetch it again with --force"
        )
