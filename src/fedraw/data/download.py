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

try:
    import pooch  # type: ignore[import-untyped]
    import requests
except ImportError as error:
    raise MissingExtra("pooch", "data") from error

# Called with a message for the user.
Notify = Callable[[str], None]

# Small, because a partly received piece is lost when the connection breaks.
_PIECE = 1 << 16
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class DownloadFailed(FedrawError):
    """The file cannot be downloaded now: no network, refused, gone, or repeatedly interrupted."""


class _Interruption(Exception):
    """A failure that is worth another attempt."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try a download, and how long to wait.

    `wait` is in seconds before the second attempt and doubles with each further one; `timeout` is
    for the server's answer, in seconds.
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
    part = target.with_name(target.name + ".part")
    resume = _ResumableDownload(part, checksum, progress, notify, retry)
    pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=resume)


def discard_partial(part: Path) -> None:
    """Delete a partial download and the record of its version."""
    part.unlink(missing_ok=True)
    _record(part).unlink(missing_ok=True)


@dataclass(frozen=True)
class _FileVersion:
    """The version of the file that a partial download belongs to, as the server reports it."""

    total: int
    etag: str | None
    modified: str | None

    @classmethod
    def of(cls, answer: requests.Response, total: int) -> _FileVersion:
        return cls(total, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))

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
                self._download_rest(url, again=attempt > 1)
                return
            except _Interruption as problem:
                if attempt == attempts:
                    message = f"{problem}; gave up after {attempts} attempts{self._remainder()}"
                    raise DownloadFailed(message) from problem
                wait = self.retry.wait * 2 ** (attempt - 1)
                self.notify(f"{problem}; attempt {attempt + 1} of {attempts} in {wait:g} s")
                time.sleep(wait)

    def _download_rest(self, url: str, again: bool) -> None:
        version, have = self._partial()
        if version and 0 < have == version.total:
            return
        with self._request(url, version, have, again) as answer:
            if have and self._continues(answer, version, have):
                self._write(answer, have)
                return
            if answer.status_code == 200:
                if have:
                    self.notify(f"{url} changed or cannot be resumed; starting again from 0 bytes")
                self._write(answer, 0)
                return
        discard_partial(self.part)
        raise _Interruption(f"{url} changed since its download began; starting again from 0 bytes")

    def _partial(self) -> tuple[_FileVersion | None, int]:
        """Return the version of the partial download and its size in bytes."""
        try:
            version = _FileVersion(**json.loads(_record(self.part).read_text(encoding="utf-8")))
            return version, self.part.stat().st_size
        except (OSError, ValueError, TypeError):
            return None, 0

    def _request(
        self, url: str, version: _FileVersion | None, have: int, again: bool
    ) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if version and have:
            headers |= {"Range": f"bytes={have}-", **version.condition}
        try:
            answer = requests.get(url, headers=headers, stream=True, timeout=self.retry.timeout)
        except (requests.ConnectionError, requests.Timeout) as error:
            # Without any connection so far we are probably offline; otherwise a retry may help.
            if _never_connected(error) and not again:
                raise DownloadFailed(f"{url} cannot be reached ({_reason(error)})") from error
            raise _Interruption(f"{url}: {_reason(error)}") from error
        except requests.RequestException as error:
            raise DownloadFailed(f"{url} cannot be fetched ({error})") from error
        if answer.status_code in (200, 206, 416):
            return answer
        answer.close()
        message = f"{url} answered {answer.status_code} {answer.reason}".rstrip()
        transient = answer.status_code in _TRANSIENT
        raise _Interruption(message) if transient else DownloadFailed(message)

    def _continues(
        self, answer: requests.Response, version: _FileVersion | None, have: int
    ) -> bool:
        """Return whether the answer is the rest of the partial download."""
        first, _, total = answer.headers.get("Content-Range", "").partition("/")
        return (
            answer.status_code == 206
            and version is not None
            and first.startswith(f"bytes {have}-")
            and total == str(version.total)
            and _FileVersion.of(answer, version.total) == version
        )

    def _write(self, answer: requests.Response, done: int) -> None:
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else 0
        name = self.part.name.removesuffix(".part")
        try:
            if done == 0:
                version = _FileVersion.of(answer, total)
                _record(self.part).write_text(json.dumps(asdict(version)), encoding="utf-8")
            with self.part.open("ab" if done else "wb") as file:
                for piece in _pieces(answer):
                    file.write(piece)
                    done += len(piece)
                    self.progress(name, done, total)
        except OSError as error:
            raise FedrawError(
                f"{self.part}: {error.strerror} after {size_text(done)}; free "
                f"{size_text(max(total - done, 0))} more, and repeat the command to resume"
            ) from error
        if done < total:
            raise _Interruption(f"{answer.url}: the connection broke at {done} of {total} bytes")

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

    def _remainder(self) -> str:
        _, have = self._partial()
        kept = f"; {size_text(have)} are kept in {self.part}; repeat the command to resume"
        return kept if have else ""


def _record(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_content(_PIECE)
    except requests.RequestException as error:
        raise _Interruption(f"{answer.url}: the connection broke") from error


def _never_connected(error: requests.RequestException) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ConnectTimeout) or hasattr(cause, "reason")


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause)).rpartition(": ")[2]
