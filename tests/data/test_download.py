"""Downloads that are interrupted, from a real server on loopback."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.file_server import FileServer, serving

from fedraw.data.download import DownloadFailed, RetryPolicy, download
from fedraw.errors import FedrawError

CONTENT = random.Random(0).randbytes(1_000_000)
OTHER = random.Random(1).randbytes(1_000_000)
SUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
HASTY = RetryPolicy(attempts=3, wait=0.01, timeout=5)
ONCE = RetryPolicy(attempts=1, wait=0.01, timeout=5)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as server:
        yield server


class Download:
    """One download, with the progress and the messages that it reports."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "a.zip"
        self.said: list[str] = []
        self.told: list[tuple[str, int, int]] = []

    def __call__(self, url: str, checksum: str | None = SUM, retry: RetryPolicy = HASTY) -> bytes:
        download(
            url,
            self.target,
            checksum,
            progress=lambda *now: self.told.append(now),
            notify=self.said.append,
            retry=retry,
        )
        assert [file.name for file in self.target.parent.iterdir()] == ["a.zip"]
        return self.target.read_bytes()


@pytest.fixture
def get(tmp_path: Path) -> Download:
    return Download(tmp_path)


def test_a_download_reports_its_progress(server: FileServer, get: Download) -> None:
    assert get(server.add("a", CONTENT)) == CONTENT
    done = [now for _, now, _ in get.told]
    assert done == sorted(done)
    assert get.told[-1] == ("a.zip", 1_000_000, 1_000_000)
    assert get.said == []


def test_a_broken_download_starts_again(server: FileServer, get: Download) -> None:
    url = server.add("a", CONTENT)
    server.cuts = [400_000]
    assert get(url) == CONTENT
    assert [(asked.status, asked.sent) for asked in server.asked] == [
        (200, 400_000), (200, 1_000_000),
    ]  # fmt: skip
    assert "the connection broke" in get.said[0]
    assert "attempt 2 of 3" in get.said[0]


def test_a_download_that_breaks_too_often_leaves_nothing(server: FileServer, get: Download) -> None:
    url = server.add("a", CONTENT)
    server.cuts = [300_000]
    with pytest.raises(DownloadFailed, match="gave up after 1 attempts"):
        get(url, retry=ONCE)
    assert list(get.target.parent.iterdir()) == []


def test_a_wrong_checksum_names_both_and_leaves_nothing(server: FileServer, get: Download) -> None:
    found = f"sha256:{hashlib.sha256(OTHER).hexdigest()}"
    with pytest.raises(FedrawError, match=f"has {found}, but {SUM} is published.*try again"):
        get(server.add("a", OTHER))
    assert list(get.target.parent.iterdir()) == []
    assert get(server.add("a", CONTENT)) == CONTENT


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_transient_server_error_is_retried(
    status: int, server: FileServer, get: Download
) -> None:
    server.statuses = [status, status]
    assert get(server.add("a", CONTENT)) == CONTENT
    assert len(get.said) == 2
    assert f"answered {status}" in get.said[0]


def test_retries_end_after_the_given_attempts(server: FileServer, get: Download) -> None:
    server.statuses = [500] * 9
    with pytest.raises(DownloadFailed, match=r"answered 500 .*; gave up after 3 attempts$"):
        get(server.add("a", CONTENT))
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_permanent_refusal_is_not_retried(status: int, server: FileServer, get: Download) -> None:
    server.statuses = [status]
    with pytest.raises(DownloadFailed, match=f"answered {status}"):
        get(server.add("a", CONTENT))
    assert len(server.asked) == 1
    assert list(get.target.parent.iterdir()) == []


def test_an_unreachable_server_is_reported(get: Download) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a"
        with pytest.raises(DownloadFailed, match=f"{url} cannot be reached .*refused"):
            get(url)
    assert get.said == []


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/a", "ftp//nonsense"])
def test_an_invalid_address_is_reported(url: str, get: Download) -> None:
    with pytest.raises(DownloadFailed, match="cannot be"):
        get(url)


def test_a_silent_server_times_out(server: FileServer, get: Download) -> None:
    url = server.add("a", CONTENT)
    server.hang, server.cuts = threading.Event(), [400_000]
    assert get(url, retry=RetryPolicy(attempts=2, wait=0.01, timeout=0.3)) == CONTENT
    assert server.asked[1].status == 200
