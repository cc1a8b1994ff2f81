"""Downloads one file, and tries again after interruptions.

Bytes go to NAME.part beside the target. Every attempt starts from the beginning: a file that is too
large for a connection can be put into the folder of downloads by other means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

_CHUNK = 1 << 16  # bytes
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
    fetch = _Downloader(part, checksum, progress, notify, retry)
    try:
        pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=fetch)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Downloader:
    """The downloader that pooch calls."""

    part: Path
    checksum: str | None
    progress: Progress
    notify: Notify
    retry: RetryPolicy

    def __call__(self, url: str, output_file: str, _: object) -> None:
        Path(output_file).unlink()  # pooch's empty file, which a killed process would leave behind
        attempts = self.retry.attempts
        for attempt in range(1, attempts + 1):
            try:
                with self._request(url, is_retry=attempt > 1) as response:
                    self._write(response)
                break
            except _Interruption as problem:
                if attempt == attempts:
                    raise DownloadFailed(f"{problem}; gave up after {attempts} attempts") from None
                wait = self.retry.wait * 2 ** (attempt - 1)
                self.notify(f"{problem}; attempt {attempt + 1} of {attempts} in {wait:g} s")
                time.sleep(wait)
        self._verify(url)
        self.part.replace(output_file)

    def _request(self, url: str, is_retry: bool) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
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
        if response.status_code == 200:
            return response
        response.close()
        message = f"{url} answered {response.status_code} {response.reason}".rstrip()
        transient = response.status_code in _TRANSIENT
        raise _Interruption(message) if transient else DownloadFailed(message)

    def _write(self, response: requests.Response) -> None:
        length = response.headers.get("Content-Length", "")
        done, total = 0, int(length) if length.isdecimal() else 0
        name = self.part.name.removesuffix(PARTIAL)
        try:
            with self.part.open("wb") as file:
                for chunk in _chunks(response):
                    file.write(chunk)
                    done += len(chunk)
                    self.progress(name, done, total)
        except OSError as error:
            raise FedrawError(
                f"{self.part}: {error.strerror} after {size_text(done)}; free "
                f"{size_text(max(total, done))}, and repeat the command"
            ) from error
        if done < total:
            raise _Interruption(f"{response.url}: the connection broke at {done} of {total} bytes")

    def _verify(self, url: str) -> None:
        if self.checksum is None:
            return
        found = digest(self.part, self.checksum)
        if found != self.checksum:
            raise FedrawError(
                f"{url}: the downloaded file has {found}, but {self.checksum} is published; it was "
                "removed, so try again"
            )


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
