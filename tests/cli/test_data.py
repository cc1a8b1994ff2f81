"""fedraw data as a user meets it: exit codes, files, what goes where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.cli import command
from tests.data.file_server import FileServer, serving
from tests.data.releases_on_disk import lay_out_cifar10, lay_out_ham10000
from tests.data.small_archives import at, served

from fedraw.data.releases import RELEASES, Release, find

BARE = {key: value for key, value in os.environ.items() if key != "FEDRAW_DATA"}


def environment(data: Path | None) -> dict[str, str]:
    return BARE if data is None else {**BARE, "FEDRAW_DATA": str(data)}


def published(release: Release) -> str:
    """What makes a process take that release for the public one."""
    return (
        "import fedraw.data.releases as releases\nfrom fedraw.data.releases import *\n"
        f"releases.RELEASES[{release.name!r}] = {release!r}"
    )


def start(*arguments: object, before: str, data: Path) -> subprocess.Popen[str]:
    """Start the command in a process of its own, which first runs the code `before`."""
    code = f"{before}\nimport fedraw.cli.main as m; m.main()"
    words = [sys.executable, "-c", code, "data", *map(str, arguments)]
    return subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=environment(data))


def fedraw(
    *arguments: object, release: Release | None = None, data: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; it takes the release, if one is given, for the public one."""
    public = {} if release is None else {release.name: release}
    with patch.dict(RELEASES, public), patch.dict(os.environ, environment(data), clear=True):
        return command.fedraw("data", *arguments, cwd=Path.cwd())


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as server:
        yield server


def test_list_names_every_release_and_what_it_asks() -> None:
    done = fedraw("list")
    assert (done.returncode, done.stderr) == (0, "")
    for release in RELEASES.values():
        assert release.name in done.stdout
    assert "CC BY-NC 4.0" in done.stdout
    assert "isic2019 is verified by length and the zip's CRCs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_list_as_json_says_what_is_there(tmp_path: Path) -> None:
    lay_out_cifar10(tmp_path)
    document = json.loads(fedraw("list", "--json", data=tmp_path).stdout)
    assert document["data"] == str(tmp_path)
    assert {one["name"]: one["here"] for one in document["releases"]} == {
        "emnist": "no", "cifar10": "yes", "ham10000": "no", "isic2019": "no",
        "shakespeare": "no", "flights": "no", "resnet18": "no",
    }  # fmt: skip
    assert document["releases"][3]["files"][2]["checksum"] is None
    nowhere = json.loads(fedraw("list", "--json").stdout)
    assert (nowhere["data"], nowhere["releases"][0]["here"]) == (None, None)


def test_fetch_and_fetch_again(server: FileServer, tmp_path: Path) -> None:
    release = served("isic2019", server)
    done = fedraw("fetch", "isic2019", "--data", tmp_path, "--remove-archive", release=release)
    assert (done.returncode, done.stdout) == (0, "")
    assert "CC BY-NC 4.0" in done.stderr
    assert "no published checksum" in done.stderr
    assert f"isic2019: fetched to {tmp_path}" in done.stderr
    again = fedraw("fetch", "isic2019", release=release, data=tmp_path)
    assert again.returncode == 0
    assert f"isic2019: already in {tmp_path}" in again.stderr
    assert list((tmp_path / "downloads").iterdir()) == []


def test_fetch_without_network_ends_with_the_way_by_hand(tmp_path: Path) -> None:
    with serving() as gone:
        release = served("cifar10", gone)
    done = fedraw("fetch", "cifar10", "--data", tmp_path, release=release)
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert f"save it as cifar-10-binary.tar.gz in {tmp_path}/downloads" in done.stderr


def test_ctrl_c_while_fetching(server: FileServer, tmp_path: Path) -> None:
    release = served("resnet18", server)
    weights = at(server, release.sources[0], os.urandom(400_000))
    release = replace(release, sources=(weights,))
    server.hang, server.cuts = threading.Event(), [200_000]
    part = tmp_path / "downloads.part"
    with start("fetch", "resnet18", before=published(release), data=tmp_path) as process:
        end = time.monotonic() + 120
        while not any(file.stat().st_size > 100_000 for file in part.glob("*")):
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("fedraw: interrupted; repeat the command\n")
    done = fedraw("fetch", "resnet18", release=release, data=tmp_path)
    assert done.returncode == 0, done.stderr


def test_check_counts_labels(tmp_path: Path) -> None:
    lay_out_cifar10(tmp_path)
    lay_out_ham10000(tmp_path)
    done = fedraw("check", data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cifar10: nothing damaged" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["train", "100", "10", "10", "10"] in rows
    assert ["all", "42", "7", "6", "6"] in rows
    document = json.loads(fedraw("check", "cifar10", "--json", "--data", tmp_path).stdout)
    (cifar10,) = document["releases"]
    assert (document["whole"], cifar10["whole"], cifar10["damaged"]) == (True, True, [])
    assert cifar10["counts"]["test"]["frog"] == 2


def test_check_finds_what_another_program_laid_out(tmp_path: Path) -> None:
    lay_out_cifar10(tmp_path)
    done = fedraw("check", data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cifar10: nothing damaged")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_check_names_damaged_files_and_fails(form: list[str], tmp_path: Path) -> None:
    lay_out_ham10000(tmp_path)
    image = tmp_path / "HAM10000" / "images" / "ISIC_0024306.jpg"
    image.write_bytes(image.read_bytes()[:100])
    done = fedraw("check", "ham10000", *form, data=tmp_path)
    assert done.returncode == 1
    assert "ISIC_0024306.jpg" in done.stdout
    if form:
        assert json.loads(done.stdout)["whole"] is False


def test_check_of_weights(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "mine.pth").write_bytes(b"")
    other = fedraw("check", "resnet18", data=tmp_path)
    assert other.returncode == 0
    assert "mine.pth is not resnet18-f37072fd.pth of torchvision" in other.stdout
    (weights / "resnet18-f37072fd.pth").write_bytes(b"half")
    half = fedraw("check", "resnet18", data=tmp_path)
    assert half.returncode == 1
    assert f"but {find('resnet18').sources[0].checksum} is published" in half.stdout


def test_check_of_the_right_weights(server: FileServer, tmp_path: Path) -> None:
    release = served("resnet18", server)
    assert fedraw("fetch", "resnet18", release=release, data=tmp_path).returncode == 0
    done = fedraw("check", release=release, data=tmp_path)
    assert done.returncode == 0
    assert f"has the published {release.sources[0].checksum}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "cifar"], "unknown dataset 'cifar'; did you mean 'cifar10'?"),
        (["fetch", "cifar10"], "no data root is set; give --data DIR or set FEDRAW_DATA"),
        (["check", "cifar"], "did you mean 'cifar10'?"),
        (["check"], "no data root is set"),
        (["check", "--data", "absent"], "absent is not a folder"),
        (["check", "--data", "EMPTY"], "has none of emnist, cifar10"),
        (["check", "emnist", "--data", "EMPTY"], "fedraw data fetch emnist"),
        (["check", "resnet18", "--data", "EMPTY"], "fedraw data fetch resnet18"),
    ],
)
def test_mistakes_are_told_with_their_remedy(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = fedraw(*(str(tmp_path) if word == "EMPTY" else word for word in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_only_fetch_needs_pooch(tmp_path: Path) -> None:
    without = "import sys; sys.modules['pooch'] = None"
    for words, code in ((["list"], 0), (["fetch", "cifar10"], 2)):
        with start(*words, before=without, data=tmp_path) as process:
            _, err = process.communicate(timeout=120)
        assert process.returncode == code
    assert "this needs pooch: pip install 'fedraw[data]'" in err
