"""Fetches a public release into the data root: download, verify, unpack.

Archives are kept in ROOT/downloads. An archive that the user puts there is used like a downloaded
one. Members are copied under the last part of their name, never extracted by path, and an archive
with a path that leaves its folder is refused.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from fedraw.data.download import DownloadFailed, Notify, RetryPolicy, download
from fedraw.data.releases import Progress, Release, Source, damage, find, missing, size_text
from fedraw.errors import BadInput, FedrawError
from fedraw.storage.files import PARTIAL
from fedraw.storage.lock import acquire

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # a password, or a compression method that zipfile does not know
)
Member = tuple[str, IO[bytes]]


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch a release.

    `force` downloads and unpacks the release again. `remove_archive` deletes the archives once they
    are unpacked. `retry` says how to retry interrupted downloads. `notify` is called with messages
    for the user.
    """

    force: bool = False
    remove_archive: bool = False
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    notify: Notify = lambda _: None


def fetch(
    release: str | Release,
    root: Path,
    progress: Progress = lambda *_: None,
    options: FetchOptions = FetchOptions(),  # noqa: B008, frozen
) -> bool:
    """Fetch the missing files of a release; return False if none is missing."""
    wanted = find(release) if isinstance(release, str) else release
    sources = list(wanted.sources) if options.force else missing(wanted, root)
    if not sources:
        return False
    downloads = _make_download_folder(root)
    with _locked(downloads):
        _fetch(wanted, sources, root, progress, options)
    return True


def unpack(source: Source, archive: Path, root: Path, progress: Progress) -> None:
    """Unpack the members of an archive that `source` names into its folder below the data root.

    The files appear in the folder only when all of them are complete.
    """
    folder = root / source.folder
    part = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        if _copy_all(source, archive, part, progress) == 0:
            raise BadInput(f"{archive}: contains no {source.members}; it is not {source.url}")
        _move_files(part, folder)
    except _DAMAGED as error:
        raise BadInput(
            f"{archive}: is damaged or not a {source.kind} archive ({error}); fetch it again with "
            "force=True"
        ) from error
    except OSError as error:
        raise FedrawError(
            f"{archive}: cannot be unpacked to {folder} ({error.strerror or error}); free some "
            "space or correct the permissions, and repeat the command"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fetch(
    release: Release, sources: list[Source], root: Path, progress: Progress, options: FetchOptions
) -> None:
    downloads = root / "downloads"
    _check_free_space(release, sources, downloads)
    # Download everything first, so that nothing is unpacked twice after an interruption.
    for source in sources:
        _obtain(release, source, downloads, progress, options)
    for source in sources:
        unpack(source, downloads / source.file, root, progress)
    _check_complete(release, root)
    for source in sources:
        if options.remove_archive or source.kind == "file":
            (downloads / source.file).unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder: two processes that write one partial download would corrupt it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not acquire(handle):
            raise BadInput(
                f"another 'fedraw data fetch' is running in {folder}; wait for it, then try again"
            )
        yield
    finally:
        os.close(handle)


def _make_download_folder(root: Path) -> Path:
    folder = root / "downloads"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}; give a data root that is writable") from error
    return folder


def _check_free_space(release: Release, sources: list[Source], downloads: Path) -> None:
    complete = sum(_size(downloads / source.file) for source in sources)
    rest = max(0, sum(source.size for source in sources) - complete)
    tables_only = all(source.kind == "file" for source in sources)
    unpacked = sum(source.size for source in sources) if tables_only else release.unpacked
    free = shutil.disk_usage(downloads).free
    if rest + unpacked > free:
        raise FedrawError(
            f"{release.name} needs {size_text(rest)} to download and {size_text(unpacked)} "
            f"unpacked, but {downloads} has only {size_text(free)} free; free some space or give "
            "another data root with data_root=..."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _obtain(
    release: Release, source: Source, downloads: Path, progress: Progress, options: FetchOptions
) -> None:
    archive = downloads / source.file
    if options.force:
        archive.unlink(missing_ok=True)
    if archive.exists():
        wrong = damage(source, archive)
        if wrong is not None:
            raise BadInput(f"{archive}: {wrong}; delete it, or download it again with force=True")
        options.notify(f"using {archive}, which exists already")
        return
    try:
        download(
            source.url,
            archive,
            source.checksum,
            progress=progress,
            notify=options.notify,
            retry=options.retry,
        )
    except DownloadFailed as error:
        raise FedrawError(f"{error}\n{_manual_instructions(release, source, downloads)}") from error


def _manual_instructions(release: Release, source: Source, downloads: Path) -> str:
    return (
        f"To fetch it by hand: download {source.url} (terms: {release.homepage}), save it as "
        f"{source.file} in {downloads.absolute()}, and repeat the command."
    )


def _check_complete(release: Release, root: Path) -> None:
    for source in missing(release, root):
        raise FedrawError(
            f"{root / source.folder}: has fewer {source.members} than {release.name}; "
            f"{source.file} is not the official file, so fetch it again with force=True"
        )


def _copy_all(source: Source, archive: Path, part: Path, progress: Progress) -> int:
    done = 0
    what = f"unpack {source.file}"
    for name, content in _members(source, archive):
        if not fnmatchcase(name, source.members):
            continue
        with (part / name).open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        done += 1
        progress(what, done, source.count)
    return done


def _members(source: Source, archive: Path) -> Iterator[Member]:
    if source.kind == "file":
        with archive.open("rb") as file:
            yield source.file, file
    elif source.kind == "zip":
        yield from _zip_members(archive)
    else:
        yield from _tar_members(archive)


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
        for entry in entries:
            _refuse_hostile(archive, entry.filename, stat.S_ISLNK(entry.external_attr >> 16))
        for entry in entries:
            if not entry.is_dir():
                with packed.open(entry) as content:
                    yield PurePosixPath(entry.filename).name, content


def _tar_members(archive: Path) -> Iterator[Member]:
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as packed:
        for entry in packed:
            _refuse_hostile(archive, entry.name, not (entry.isreg() or entry.isdir()))
            content = packed.extractfile(entry)
            if content is not None:
                with content:
                    yield PurePosixPath(entry.name).name, content
        # The tar ends before the gzip stream, whose CRC is checked at its end.
        while stream.read(1 << 20):
            pass


def _refuse_hostile(archive: Path, name: str, special: bool) -> None:
    path = PurePosixPath(name)
    if special or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        what = "a link or device" if special else "a path that leaves the folder"
        raise BadInput(
            f"{archive}: member {name!r} is {what}, which the official archive does not have; "
            "delete the file and fetch it again"
        )


def _move_files(part: Path, folder: Path) -> None:
    if not folder.exists():
        part.rename(folder)
        return
    for file in part.iterdir():
        file.replace(folder / file.name)
