"""Fetches a public release into the data root: download, verify, unpack.

pooch downloads archives to ROOT/downloads. An archive that the user puts there is used like a
downloaded one. Members are copied under the last part of their name, never extracted by path, and
an archive with a path that leaves its folder is refused.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from fedraw.core.text import counted
from fedraw.data.releases import Progress, Release, Source, damage, find, missing, size_text
from fedraw.errors import BadInput, FedrawError, MissingExtra
from fedraw.storage.files import PARTIAL
from fedraw.storage.lock import acquire

try:
    import pooch  # type: ignore[import-untyped]
    import requests
except ImportError as error:
    raise MissingExtra("pooch", "data") from error

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # a password, or a compression method that zipfile does not know
)
_CHUNK = 1 << 16  # bytes
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
# The name of a member, its content, and whether it is a link or a device.
Member = tuple[str, IO[bytes] | None, bool]


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch a release.

    `force` downloads and unpacks the release again. `remove_archive` deletes the archives once they
    are unpacked. An interrupted download begins again, `attempts` times in all, and `timeout` is
    how many seconds to wait for the server. `notify` is called with messages for the user.
    """

    force: bool = False
    remove_archive: bool = False
    attempts: int = 8
    timeout: float = 60.0
    notify: Callable[[str], None] = lambda _: None


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
    downloads = root / "downloads"
    with _locked(downloads):
        _check_free_space(wanted, sources, downloads)
        # Download everything first, so that nothing is unpacked twice after an interruption.
        for source in sources:
            _obtain(wanted, source, downloads, progress, options)
        for source in sources:
            unpack(source, downloads / source.file, root, progress)
        for source in missing(wanted, root):
            raise FedrawError(
                f"{root / source.folder}: has fewer {source.members} than {wanted.name}; "
                f"{source.file} is not the official file, so fetch it again with force=True"
            )
        for source in sources:
            if options.remove_archive or source.kind == "file":
                (downloads / source.file).unlink()
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
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(folder / file.name)
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make and lock the folder: two processes must not write the same files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}; give a data root that is writable") from error
    try:
        if not acquire(handle):
            raise BadInput(
                f"another 'fedraw data fetch' is running in {folder}; wait for it, then try again"
            )
        yield
    finally:
        os.close(handle)


def _check_free_space(release: Release, sources: list[Source], downloads: Path) -> None:
    archives = [downloads / source.file for source in sources]
    total = sum(source.size for source in sources)
    rest = max(0, total - sum(path.stat().st_size for path in archives if path.exists()))
    tables_only = all(source.kind == "file" for source in sources)
    unpacked = total if tables_only else release.unpacked
    free = shutil.disk_usage(downloads).free
    if rest + unpacked > free:
        raise FedrawError(
            f"{release.name} needs {size_text(rest)} to download and {size_text(unpacked)} "
            f"unpacked, but {downloads} has only {size_text(free)} free; free some space or give "
            "another data root with data_root=..."
        )


def _obtain(
    release: Release, source: Source, downloads: Path, progress: Progress, options: FetchOptions
) -> None:
    """Use the archive that is there, or download it; it appears only when it is complete."""
    archive = downloads / source.file
    if options.force:
        archive.unlink(missing_ok=True)
    if archive.exists():
        wrong = damage(source, archive)
        if wrong is not None:
            raise BadInput(f"{archive}: {wrong}; delete it, or download it again with force=True")
        options.notify(f"using {archive}, which exists already")
        return
    part = downloads.with_name(downloads.name + PARTIAL)
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    pooch.get_logger().setLevel("WARNING")
    files = pooch.create(
        part,
        base_url="",
        registry={source.file: None},  # a wrong file is not downloaded again, see _Download
        urls={source.file: source.url},
        retry_if_failed=options.attempts - 1,
    )
    try:
        download = _Download(source, progress, options)
        Path(files.fetch(source.file, downloader=download)).replace(archive)
    except (_Final, requests.RequestException) as error:
        raise FedrawError(
            f"{download.problem}; gave up after {counted(download.asked, 'attempt')}\nTo fetch it "
            f"by hand: download {source.url} (terms: {release.homepage}), save it as "
            f"{source.file} in {downloads.absolute()}, and repeat the command."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Final(Exception):
    """A failure that no other attempt can change."""


@dataclass
class _Download:
    """One download, as pooch calls it: the downloader, and its own progress bar."""

    source: Source
    progress: Progress
    options: FetchOptions
    asked: int = 0
    problem: str = ""
    total: int = 0  # the length of the file, once the server has answered
    done: int = 0

    def __call__(self, url: str, output_file: str, of: pooch.Pooch) -> None:
        responses: list[requests.Response] = []
        get = pooch.HTTPDownloader(
            progressbar=self,
            chunk_size=_CHUNK,
            timeout=self.options.timeout,
            headers={"Accept-Encoding": "identity"},
            hooks={"response": lambda response, **_: responses.append(response)},
        )
        self.asked += 1
        self.reset()
        try:
            get(url, output_file, of)
        except requests.RequestException as error:
            self.problem = _told(url, error)
            if self._is_final(error):
                raise _Final from error
            self.options.notify(f"{self.problem}; attempt {self.asked} of {self.options.attempts}")
            raise
        except OSError as error:
            raise FedrawError(
                f"{output_file}: {error.strerror} after {size_text(self.done)}; free "
                f"{size_text(max(self.total, self.done))}, and repeat the command"
            ) from error
        finally:
            for response in responses:  # pooch leaves them open after an error
                response.close()
        wrong = damage(self.source, Path(output_file))
        if wrong is not None:
            raise FedrawError(f"{url}: the downloaded file {wrong}; it was removed, so try again")

    def _is_final(self, error: requests.RequestException) -> bool:
        """Return whether no other attempt can help: a refusal, or nobody has ever answered."""
        if error.response is not None:
            return error.response.status_code not in _TRANSIENT
        return self.total == 0

    def update(self, size: int) -> None:
        self.done += size  # of a whole chunk, even if the last one is shorter
        self.done = min(self.done, self.total or self.done)
        self.progress(self.source.file, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _told(url: str, error: requests.RequestException) -> str:
    if error.response is not None:
        return f"{url} answered {error.response.status_code} {error.response.reason}".rstrip()
    cause = error.args[0] if error.args else error
    reason = str(getattr(cause, "reason", cause)).rpartition(": ")[2]
    return f"{url} cannot be reached, or the connection broke ({reason})"


def _copy_all(source: Source, archive: Path, part: Path, progress: Progress) -> int:
    done = 0
    for name, content, is_special in _members(source, archive):
        path = PurePosixPath(name)
        leaves = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
        if is_special or leaves:
            what = "a link or device" if is_special else "a path that leaves the folder"
            raise BadInput(
                f"{archive}: member {name!r} is {what}, which the official archive does not have; "
                "delete the file and fetch it again"
            )
        if content is not None and fnmatchcase(path.name, source.members):
            with (part / path.name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            done += 1
            progress(f"unpack {source.file}", done, source.count)
    return done


def _members(source: Source, archive: Path) -> Iterator[Member]:
    if source.kind == "file":
        with archive.open("rb") as file:
            yield source.file, file, False
    elif source.kind == "zip":
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as content:
                    is_link = stat.S_ISLNK(entry.external_attr >> 16)
                    yield entry.filename, None if entry.is_dir() else content, is_link
    else:
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for item in tar:
                is_special = not (item.isreg() or item.isdir())
                yield item.name, None if is_special else tar.extractfile(item), is_special
            # The tar ends before the gzip stream, whose CRC is checked at its end.
            while stream.read(1 << 20):
                pass
