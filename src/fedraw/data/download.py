"""Downloads one file and survives what happens to long downloads.

Bytes go to NAME.part beside the target, and NAME.part.json remembers which version of the file they
are of. A later attempt, in this process or another, asks the server for the rest of that version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fedraw.data.progress import Progress
from fedraw.data.releases import digest, size_text
from fedraw.errors import FedrawError, MissingExtra

try:
    import pooch  # type: ignore[import-untyped]
    import requests
except ImportError as error:
    raise MissingExtra("pooch", "data") from error

Say = Callable[[str], None]

# Small, because what of a piece has arrived when the connection breaks is lost.
_PIECE = 1 << 16
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


class NotServed(FedrawError):
    """The address gives no file now: no network, refused, gone, or broken time and again."""


class _Broken(Exception):
    """Worth another attempt."""


@dataclass(frozen=True)
class Patience:
    """How often to try, and how long to wait: seconds before the second attempt, then doubled."""

    attempts: int = 5
    wait: float = 2.0
    timeout: float = 60.0


def download(
    url: str,
    target: Path,
    checksum: str | None,
    *,
    progress: Progress,
    say: Say,
    patience: Patience,
) -> None:
    """Bring the file at `url` to `target`, which appears only when it is whole and verified."""
    pooch.get_logger().setLevel("WARNING")
    resuming = Resuming(target.with_name(target.name + ".part"), checksum, progress, say, patience)
    pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=resuming)


def forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Version:
    """Which file a part belongs to, as far as the server tells."""

    total: int
    etag: str | None
    modified: str | None

    @classmethod
    def of(cls, answer: requests.Response, total: int) -> _Version:
        return cls(total, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))

    @property
    def condition(self) -> dict[str, str]:
        # A weak tag does not promise the same bytes, so servers ignore it here.
        strong = self.etag if self.etag and not self.etag.startswith("W/") else None
        validator = strong or self.modified
        return {"If-Range": validator} if validator else {}


@dataclass(frozen=True)
class Resuming:
    """The downloader that pooch calls: goes on where the part ends."""

    part: Path
    checksum: str | None
    progress: Progress
    say: Say
    patience: Patience

    def __call__(self, url: str, output_file: str, _: object) -> None:
        Path(output_file).unlink()  # empty; a killed process would leave it behind
        self._all(url)
        self._verify(url)
        self.part.replace(output_file)
        forget(self.part)

    def _all(self, url: str) -> None:
        attempts = self.patience.attempts
        for attempt in range(1, attempts + 1):
            try:
                self._rest(url, again=attempt > 1)
                return
            except _Broken as broken:
                if attempt == attempts:
                    told = f"{broken}; gave up after {attempts} attempts{self._kept()}"
                    raise NotServed(told) from broken
                wait = self.patience.wait * 2 ** (attempt - 1)
                self.say(f"{broken}; attempt {attempt + 1} of {attempts} in {wait:g} s")
                time.sleep(wait)

    def _rest(self, url: str, again: bool) -> None:
        version, have = self._begun()
        if version and 0 < have == version.total:
            return
        with self._ask(url, version, have, again) as answer:
            if have and self._continues(answer, version, have):
                self._write(answer, have)
                return
            if answer.status_code == 200:
                if have:
                    self.say(f"{url} changed or is only served whole; starting anew")
                self._write(answer, 0)
                return
        forget(self.part)
        raise _Broken(f"{url} changed since its download began, which starts anew")

    def _begun(self) -> tuple[_Version | None, int]:
        try:
            version = _Version(**json.loads(_note(self.part).read_text(encoding="utf-8")))
            return version, self.part.stat().st_size
        except (OSError, ValueError, TypeError):
            return None, 0

    def _ask(self, url: str, version: _Version | None, have: int, again: bool) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if version and have:
            headers |= {"Range": f"bytes={have}-", **version.condition}
        try:
            answer = requests.get(url, headers=headers, stream=True, timeout=self.patience.timeout)
        except (requests.ConnectionError, requests.Timeout) as error:
            # Who never got through is offline; who did may just have lost the line.
            if _never_connected(error) and not again:
                raise NotServed(f"{url} cannot be reached ({_reason(error)})") from error
            raise _Broken(f"{url}: {_reason(error)}") from error
        except requests.RequestException as error:
            raise NotServed(f"{url} cannot be fetched ({error})") from error
        if answer.status_code in (200, 206, 416):
            return answer
        answer.close()
        told = f"{url} answered {answer.status_code} {answer.reason}".rstrip()
        raise _Broken(told) if answer.status_code in _PASSING else NotServed(told)

    def _continues(self, answer: requests.Response, version: _Version | None, have: int) -> bool:
        first, _, total = answer.headers.get("Content-Range", "").partition("/")
        return (
            answer.status_code == 206
            and version is not None
            and first.startswith(f"bytes {have}-")
            and total == str(version.total)
            and _Version.of(answer, version.total) == version
        )

    def _write(self, answer: requests.Response, done: int) -> None:
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else 0
        name = self.part.name.removesuffix(".part")
        try:
            if done == 0:
                version = _Version.of(answer, total)
                _note(self.part).write_text(json.dumps(asdict(version)), encoding="utf-8")
            with self.part.open("ab" if done else "wb") as file:
                for piece in _pieces(answer):
                    file.write(piece)
                    done += len(piece)
                    self.progress(name, done, total)
        except OSError as error:
            raise FedrawError(
                f"{self.part}: {error.strerror} after {size_text(done)}; make room for "
                f"{size_text(max(total - done, 0))} more, and the same command goes on there"
            ) from error
        if done < total:
            raise _Broken(f"{answer.url}: the connection broke at {done} of {total} bytes")

    def _verify(self, url: str) -> None:
        if self.checksum is None:
            return
        found = digest(self.part, self.checksum)
        if found != self.checksum:
            forget(self.part)
            raise FedrawError(
                f"{url}: what was downloaded has {found}, and {self.checksum} is published; it was "
                "removed, so try again"
            )

    def _kept(self) -> str:
        _, have = self._begun()
        kept = f"; {size_text(have)} are kept in {self.part}, and the same command goes on there"
        return kept if have else ""


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_content(_PIECE)
    except requests.RequestException as error:
        raise _Broken(f"{answer.url}: the connection broke") from error


def _never_connected(error: requests.RequestException) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ConnectTimeout) or hasattr(cause, "reason")


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause)).rpartition(": ")[2]
