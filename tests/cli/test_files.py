"""Files as a user has them: odd names, no room, no permission, and what a run leaves behind."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import SMALL, fedraw

from fedraw.cli.app import exit_code

QUICK = SMALL.replace("seeds = [1, 2]", "seeds = [1]")
FREE = QUICK.replace("epochs = 1", 'kind = "none"')


def spec_in(folder: Path, text: str = FREE) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


def test_all_files_of_a_run_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    spec_in(tmp_path, QUICK)
    for mask, out in ((0o022, "open"), (0o077, "private")):
        before = os.umask(mask)
        try:
            done = fedraw("run", "small.toml", "--out", out, cwd=tmp_path)
        finally:
            os.umask(before)
        assert done.returncode == 0, done.stderr
        files = [path for path in (tmp_path / out).rglob("*") if path.is_file()]
        assert {"model.safetensors", "summary.json", "report.html"} <= {f.name for f in files}
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o666 & ~mask}


def test_no_room_for_the_log_names_the_log(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the write fails in the same way."""
    spec_in(tmp_path, FREE.replace("events = 30", "events = 3000"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-m", "fedraw", "run", "small.toml", "--jobs", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == "fedraw: runs/small/seed-1/events.jsonl: File too large\n"


def test_no_room_for_the_output_is_said(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("client,label,count\na,x,1\nb,y,2\nc,x,3\n")
    command = [sys.executable, "-m", "fedraw", "audit", "l.csv"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=tmp_path, check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "fedraw: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, 2),
        (errno.EROFS, 2),
        (errno.ENAMETOOLONG, 2),
        (errno.ENOTDIR, 2),
        (errno.ENOSPC, 1),
        (errno.EIO, 1),
    ],
)
def test_a_wrong_path_is_bad_input_and_a_broken_machine_is_not(number: int, code: int) -> None:
    assert exit_code(OSError(number, os.strerror(number))) == code


@pytest.mark.parametrize("arguments", [[], ["--resume"], ["--force"], ["--dry-run"]])
def test_a_name_that_is_too_long_is_bad_input(tmp_path: Path, arguments: list[str]) -> None:
    spec_in(tmp_path)
    done = fedraw("run", "small.toml", "--out", "a" * 300, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "File name too long" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path: Path) -> None:
    spec_in(tmp_path, FREE)
    assert fedraw("run", "small.toml", cwd=tmp_path).returncode == 0
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for arguments, words in (
        ([], "already holds a finished run"),
        (["--resume", "--force"], "--resume and --force exclude each other"),
        (["--resume", "--set", "run.events=31"], "its run.events was 30 and is now 31"),
        (["--address", "auto"], "add --executor ray"),
        (["--out", "file"], "file is not a folder; choose another --out"),
    ):
        real = fedraw("run", "small.toml", *arguments, cwd=tmp_path)
        dry = fedraw("run", "small.toml", "--dry-run", *arguments, cwd=tmp_path)
        assert (dry.returncode, dry.stderr) == (2, real.stderr)
        assert words in dry.stderr
    for arguments in (["--resume"], ["--force"], ["--out", "new/folder"]):
        done = fedraw("run", "small.toml", "--dry-run", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_spec_is_a_federation_without_rare_labels(tmp_path: Path) -> None:
    spec_in(tmp_path, "")
    done = fedraw("run", "small.toml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'kind = "auto"' in done.stdout
    assert "# rare labels: []" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_specs_and_folders_with_names_that_are_not_utf_8(tmp_path: Path) -> None:
    """Latin-1, as an old archive unpacks it; a DEL; the page is called after the spec."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \x7f"))
    folder.mkdir()
    spec = folder / os.fsdecode(b"sp\xe9c.toml")
    spec.write_text(FREE)
    done = fedraw("run", spec, "--out", folder / os.fsdecode(b"r\xfcns"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = folder / os.fsdecode(b"r\xfcns") / "report.html"
    assert "sp\\udce9c" in page.read_text()
    done = fedraw("report", page.parent, "-o", page, "--title", os.fsdecode(b"\xe9"), cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_data_in_files_with_odd_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.random((400, 4, 4)), np.arange(400) % 10
    np.savez(tmp_path / "d\x7f\x1b.npz", images=images, labels=labels)
    text = FREE + '[data]\nname = "npz"\npath = "d\\u007f\\u001b.npz"\n'
    spec_in(tmp_path, text)
    done = fedraw("run", "small.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = fedraw("run", "small.toml", "--resume", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    json.loads(again.stdout)
    latin = os.fsdecode(b"data.path=caf\xe9.npz")
    done = fedraw("run", "small.toml", "--out", "x", "--set", latin, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fedraw: small.toml: data.path = ")
    assert "is not UTF-8" in done.stderr
