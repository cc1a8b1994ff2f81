"""Processes that are killed, that meet, and that find the disk full while they decode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.data.releases_on_disk import lay_out_ham10000

from fedraw.data.catalog import load

SCRIPT = Path(__file__).with_name("one_decoding.py")
# More than a block of photographs, so that there is something between the first and the last.
IMAGES = 260


@contextmanager
def decoding(root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), *(options or ("straight",))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(input="\n" * 9, timeout=60)
    return output.splitlines()


def fingerprint(root: Path) -> str:
    return load("ham10000", root=root, size=8, rng=np.random.default_rng(0)).sha256()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lay_out_ham10000(tmp_path / "data", images=IMAGES, shape=(8, 8))
    return tmp_path / "data"


def test_a_killed_decoding_leaves_nothing_that_looks_whole(root: Path) -> None:
    kept = root.parent / "cache"
    with decoding(root, "pause") as process:
        assert line(process) == "decoding ham10000 0 260"
        assert line(process) == "decoding ham10000 256 260"
        process.kill()
        process.wait()
    lock, remains = sorted(kept.iterdir())
    assert (lock.suffix, remains.suffix) == (".lock", ".part")
    assert (remains / "images.npy").exists()
    told: list[tuple[str, int, int]] = []
    load(
        "ham10000", root=root, size=8, rng=np.random.default_rng(0),
        progress=lambda *what: told.append(what),
    )  # fmt: skip
    assert told[0] == ("decoding ham10000", 0, 260)
    assert not list(kept.glob("*.part"))


def test_a_second_process_waits_and_uses_what_the_first_made(root: Path) -> None:
    with decoding(root, "pause") as first:
        assert [line(first), line(first)][1] == "decoding ham10000 256 260"
        with decoding(root) as second:
            assert line(second) == "waiting for another process to prepare ham10000 0 1"
            *rest, made = lines(first)
            assert rest == ["decoding ham10000 260 260"]
            assert lines(second) == [made]
    assert made == fingerprint(root)


def test_a_full_disk_is_told_and_nothing_is_left(root: Path) -> None:
    with decoding(root, "straight", "20000") as process:
        problem = lines(process)[-1]
    kept = root.parent / "cache"
    assert problem == (
        f"cannot write to the cache {kept}: File too large; free some space there, or set "
        "FEDRAW_CACHE to another folder"
    )
    assert [path.suffix for path in kept.iterdir()] == [".lock"]
    assert len(fingerprint(root)) == 64
