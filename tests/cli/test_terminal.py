"""Output to any terminal: nothing steers it, and a closed or an old one causes no error."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from tests.cli.command import SMALL, fedraw
from tests.eventlog.logs import as_bytes, read_objects

# Clears the screen, forges a line, reverses the reading direction, rings; C0, C1 and format codes.
NASTY = "\x1b[2J\x9b31m\x07\x7f\u202e\rforged"
KINDS = {"Cc", "Cf", "Cs", "Co", "Cn"}


def assert_harmless(done: subprocess.CompletedProcess[str]) -> None:
    for text in (done.stdout, done.stderr):
        found = {c for c in text if unicodedata.category(c) in KINDS and c != "\n"}
        assert not found, (found, text)
    assert "Traceback" not in done.stderr


def test_names_in_an_audit(tmp_path: Path) -> None:
    rows = "".join(f"site {i},common,{60 + i}\n" for i in range(11))
    name = f'"{NASTY}"'
    (tmp_path / "l.csv").write_text(f"client,label,count\n{rows}{name},common,9\n{name},{name},9\n")
    times = "".join(f"site {i},1\n" for i in range(11))
    (tmp_path / "t.csv").write_text(f"client,seconds\n{times}{name},6\n")
    done = fedraw("audit", "l.csv", "--times", "t.csv", "--fail-on", "lost", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "forged" in done.stdout
    assert "forged" in done.stderr
    assert_harmless(done)


def test_names_and_notes_in_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SMALL)
    quick = ("--seeds", "1", "--set", "training.kind=none")
    assert fedraw("run", "s.toml", *quick, "--out", "r", cwd=tmp_path).returncode == 0
    log = tmp_path / "r/seed-1/events.jsonl"
    start, *rest = read_objects(log)
    log.write_bytes(as_bytes([start | {"name": NASTY, "notes": [NASTY]}, *rest]))
    for form in ([], ["--format", "md"], ["--format", "csv"], ["--format", "latex"]):
        assert_harmless(fedraw("compare", "r", *form, cwd=tmp_path))


@pytest.mark.parametrize("command", ["audit", "compare", "run", "watch", "new", "report"])
def test_paths_in_errors(command: str, tmp_path: Path) -> None:
    done = fedraw(command, f"no/{NASTY}", cwd=tmp_path)
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert_harmless(done)


def test_a_key_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[strategy]\n"\\u001b[2J\\u009b" = 1\n')
    done = fedraw("run", "s.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert_harmless(done)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_file_names_that_are_not_utf_8_are_shown(tmp_path: Path) -> None:
    spec = os.fsencode(tmp_path) + b"/caf\xe9.toml"
    command = [sys.executable.encode(), b"-m", b"fedraw", b"new", spec]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert rb"caf\xe9.toml written" in done.stderr
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert rb"caf\xe9.toml exists" in done.stderr


def in_shell(redirected: str, *arguments: str, cwd: Path, **variables: str) -> tuple[int, str, str]:
    """Run the command in a process whose streams a shell has redirected."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "fedraw"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    (tmp_path / "l.csv").write_text("client,label,count\nbodø,flu,3\noslo,flu,3\n", "utf-8")
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(labels: Path, closed: str) -> None:
    assert in_shell(closed, "audit", "l.csv", "-o", "page.html", cwd=labels)[0] == 0
    assert (labels / "page.html").read_text("utf-8").startswith("<!doctype html>")
    assert in_shell(closed, "audit", "l.csv", "--json", cwd=labels)[0] == 0
    assert in_shell(closed, "audit", "nofile.csv", cwd=labels)[0] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
def test_a_terminal_without_unicode_shows_escape_sequences(labels: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    code, out, _ = in_shell("", "audit", "l.csv", "--rare", "flu", cwd=labels, **ascii_only)
    assert code == 0
    assert out.isascii()
    code, _, err = in_shell("", "audit", "bodø.csv", cwd=labels, **ascii_only)
    assert code == 2
    assert r"bod\xf8.csv: there is no such file" in err
