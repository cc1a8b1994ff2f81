"""Unpacks the wanted files of an archive into one folder, where they appear only when whole.

Members are copied under the last part of their name, never extracted by path; still, an archive
that tries to leave its folder is refused as a whole.
"""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from fedraw.data.progress import Progress
from fedraw.data.releases import Source
from fedraw.errors import BadInput, FedrawError

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # a password, a method that zipfile does not know
)
Member = tuple[str, IO[bytes]]


def unpack(source: Source, archive: Path, root: Path, progress: Progress) -> None:
    """Bring what `source` wants of its archive to its folder below the root."""
    folder = root / source.folder
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        if _copy_all(source, archive, part, progress) == 0:
            raise BadInput(f"{archive}: holds no {source.members}; it is not {source.url}")
        _move(part, folder)
    except _DAMAGED as error:
        raise BadInput(
            f"{archive}: damaged or no {source.kind} archive ({error}); fetch it again with --force"
        ) from error
    except OSError as error:
        raise FedrawError(
            f"{archive}: cannot be unpacked to {folder} ({error.strerror or error}); make room or "
            "mend the permissions, and give the same command again"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive)


def _of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
        for entry in entries:
            _refuse_hostile(archive, entry.filename, stat.S_ISLNK(entry.external_attr >> 16))
        for entry in entries:
            if not entry.is_dir():
                with packed.open(entry) as content:
                    yield PurePosixPath(entry.filename).name, content


def _of_tar(archive: Path) -> Iterator[Member]:
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as packed:
        for entry in packed:
            _refuse_hostile(archive, entry.name, not (entry.isreg() or entry.isdir()))
            content = packed.extractfile(entry)
            if content is not None:
                with content:
                    yield PurePosixPath(entry.name).name, content
        while stream.read(1 << 20):  # a tar ends before its gzip, whose CRC is the very last
            pass


def _refuse_hostile(archive: Path, name: str, special: bool) -> None:
    path = PurePosixPath(name)
    if special or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        what = "a link or device" if special else "a path that leaves the folder"
        raise BadInput(
            f"{archive}: member {name!r} is {what}, which the official archive does not hold; "
            "delete the file and fetch it again"
        )


def _move(part: Path, folder: Path) -> None:
    if not folder.exists():
        part.rename(folder)
        return
    for file in part.iterdir():
        file.replace(folder / file.name)
