"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "report.html", tmp_path / "latest.html"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_a_missing_file_creates_the_file(tmp_path: Path) -> None:
    link = tmp_path / "latest.html"
    link.symlink_to("report.html")
    atomic_write(link, b"new")
    assert (tmp_path / "report.html").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_is_refused_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match=r"pipe is a device or pipe, .* name a file"):
        atomic_write(pipe, b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_and_a_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"is a folder, .* name a file"):
        atomic_write(Path(), b"new")
    with pytest.raises(BadInput, match="/dev/null is a device or pipe"):
        atomic_write(Path("/dev/null"), b"new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
