"""Downloads one file, resuming after interruptions.

Bytes go to NAME.part beside the target, and NAME.part.json records the version of the file that
they belong to. A later attempt, in this process or another, requests the rest of that version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fedraw.data.releases import Progress, digest, size_text
from fedraw.errors import FedrawError, MissingExtra
from fedraw.storage.files import PARTIAL

try:
    import pooch  # type: ignore[import-untyped]
    import requests
except ImportError as error:
    raise MissingExtra("pooch", "data") from error

# Called with a message for the user.
Notify = Callable[[str], None]

# Bytes; small, because a partly received chunk is lost when the connection breaks.
_CHUNK = 1 << 16
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class DownloadFailed(FedrawError):
    """The file cannot be downloaded now: no network, refused, gone, or repeatedly interrupted."""


class _Interruption(Exception):
    """A failure that is worth another attempt."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try a download, and how long to wait.

    `wait` is the number of seconds before the second attempt, and doubles with each further one.
    `timeout` is how many seconds to wait for a response of the server.
    """

    attempts: int = 5
    wait: float = 2.0
    timeout: float = 60.0


def download(
    url: str,
    target: Path,
    checksum: str | None,
    *,
    progress: Progress,
    notify: Notify,
    retry: RetryPolicy,
) -> None:
    """Download `url` to `target`, which appears only when it is complete and verified.

    `checksum` is "md5:…" or "sha256:…", or None if none is published.
    """
    pooch.get_logger().setLevel("WARNING")
    part = target.with_name(target.name + PARTIAL)
    resume = _ResumableDownload(part, checksum, progress, notify, retry)
    pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=resume)


def discard_partial(part: Path) -> None:
    """Delete a partial download and the record of its version."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


@dataclass(frozen=True)
class _FileVersion:
    """The version of the file that a partial download belongs to, as the server reports it."""

    total: int
    etag: str | None
    modified: str | None

    @classmethod
    def of(cls, response: requests.Response, total: int) -> _FileVersion:
        return cls(total, response.headers.get("ETag"), response.headers.get("Last-Modified"))

    @property
    def condition(self) -> dict[str, str]:
        # A weak tag does not promise identical bytes, so servers ignore it in If-Range.
        strong = self.etag if self.etag and not self.etag.startswith("W/") else None
        validator = strong or self.modified
        return {"If-Range": validator} if validator else {}


@dataclass(frozen=True)
class _ResumableDownload:
    """The downloader that pooch calls; it continues where the partial download ends."""

    part: Path
    checksum: str | None
    progress: Progress
    notify: Notify
    retry: RetryPolicy

    def __call__(self, url: str, output_file: str, _: object) -> None:
        Path(output_file).unlink()  # pooch's empty file, which a killed process would leave behind
        self._download_with_retries(url)
        self._verify(url)
        self.part.replace(output_file)
        discard_partial(self.part)

    def _download_with_retries(self, url: str) -> None:
        attempts = self.retry.attempts
        for attempt in range(1, attempts + 1):
            try:
                self._download_rest(url, is_retry=attempt > 1)
                return
            except _Interruption as problem:
                if attempt == attempts:
                    message = f"{problem}; gave up after {attempts} attempts{self._resume_hint()}"
                    raise DownloadFailed(message) from problem
                wait = self.retry.wait * 2 ** (attempt - 1)
                self.notify(f"{problem}; attempt {attempt + 1} of {attempts} in {wait:g} s")
                time.sleep(wait)

    def _download_rest(self, url: str, is_retry: bool) -> None:
        version, received = self._partial()
        if version and 0 < received == version.total:
            return
        with self._request(url, version, received, is_retry) as response:
            if received and self._is_continuation(response, version, received):
                self._write(response, received)
                return
            if response.status_code == 200:
                if received:
                    self.notify(f"{url} changed or cannot be resumed; starting again from 0 bytes")
                self._write(response, 0)
                return
        discard_partial(self.part)
        raise _Interruption(f"{url} changed since its download began; starting again from 0 bytes")

    def _partial(self) -> tuple[_FileVersion | None, int]:
        """Return the version of the partial download and its size in bytes."""
        try:
            version = _FileVersion(
                **json.loads(_version_file(self.part).read_text(encoding="utf-8"))
            )
            return version, self.part.stat().st_size
        except (OSError, ValueError, TypeError):
            return None, 0

    def _request(
        self, url: str, version: _FileVersion | None, received: int, is_retry: bool
    ) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if version and received:
            headers |= {"Range": f"bytes={received}-", **version.condition}
        try:
            response = requests.get(url, headers=headers, stream=True, timeout=self.retry.timeout)
        except (requests.ConnectionError, requests.Timeout) as error:
            # If the first attempt finds no connection, this machine is probably offline. After an
            # interruption, another attempt may help.
            if _never_connected(error) and not is_retry:
                raise DownloadFailed(f"{url} cannot be reached ({_reason(error)})") from error
            raise _Interruption(f"{url}: {_reason(error)}") from error
        except requests.RequestException as error:
            raise DownloadFailed(f"{url} cannot be fetched ({error})") from error
        if response.status_code in (200, 206, 416):
            return response
        response.close()
        message = f"{url} answered {response.status_code} {response.reason}".rstrip()
        transient = response.status_code in _TRANSIENT
        raise _Interruption(message) if transient else DownloadFailed(message)

    def _is_continuation(
        self, response: requests.Response, version: _FileVersion | None, received: int
    ) -> bool:
        """Return whether the response continues the partial download."""
        first, _, total = response.headers.get("Content-Range", "").partition("/")
        return (
            response.status_code == 206
            and version is not None
            and first.startswith(f"bytes {received}-")
            and total == str(version.total)
            and _FileVersion.of(response, version.total) == version
        )

    def _write(self, response: requests.Response, done: int) -> None:
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else 0
        name = self.part.name.removesuffix(PARTIAL)
        try:
            if done == 0:
                version = _FileVersion.of(response, total)
                _version_file(self.part).write_text(json.dumps(asdict(version)), encoding="utf-8")
            with self.part.open("ab" if done else "wb") as file:
                for chunk in _chunks(response):
                    file.write(chunk)
                    done += len(chunk)
                    self.progress(name, done, total)
        except OSError as error:
            raise FedrawError(
                f"{self.part}: {error.strerror} after {size_text(done)}; free "
                f"{size_text(max(total - done, 0))} more, and repeat the command to resume"
            ) from error
        if done < total:
            raise _Interruption(f"{response.url}: the connection broke at {done} of {total} bytes")

    def _verify(self, url: str) -> None:
        if self.checksum is None:
            return
        found = digest(self.part, self.checksum)
        if found != self.checksum:
            discard_partial(self.part)
            raise FedrawError(
                f"{url}: the downloaded file has {found}, but {self.checksum} is published; it was "
                "removed, so try again"
            )

    def _resume_hint(self) -> str:
        _, received = self._partial()
        hint = f"; {size_text(received)} are kept in {self.part}; repeat the command to resume"
        return hint if received else ""


def _version_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _chunks(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.iter_content(_CHUNK)
    except requests.RequestException as error:
        raise _Interruption(f"{response.url}: the connection broke") from error


def _never_connected(error: requests.RequestException) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ConnectTimeout) or hasattr(cause, "reason")


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause)).rpartition(": ")[2]
