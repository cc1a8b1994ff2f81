"""Ctrl-C at any moment: no traceback, and an exit code that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.command import SMALL

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")

# What a process has loaded tells how far it is.
MOMENTS = {
    "while fedraw is imported": "numpy",
    "while its command line is imported": "safetensors",
    "while torch is imported": "libtorch_cpu",
}


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedraw", *arguments],
        cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], library: str) -> None:
    deadline = time.monotonic() + 60
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, f"it ended before it loaded {library}"
        assert time.monotonic() < deadline, f"it did not load {library}"
        time.sleep(0.001)


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except FileNotFoundError:  # closed meanwhile
        return link


# With two jobs only the workers load torch: see test_ctrl_c_while_workers_start.
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_no_traceback(tmp_path: Path, moment: str) -> None:
    (tmp_path / "s.toml").write_text(SMALL.replace("events = 30", "events = 100000"))
    process = started("run", "s.toml", "--jobs", "1", cwd=tmp_path)
    wait_for(process, MOMENTS[moment])
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    _, told = process.communicate(timeout=120)
    assert "Traceback" not in told, told
    assert "KeyboardInterrupt" not in told, told
    assert process.returncode in (130, -signal.SIGINT), told


@pytest.mark.parametrize(
    "seconds", [*(pytest.param(value, marks=pytest.mark.slow) for value in (0.0, 0.3)), 1.0]
)
def test_ctrl_c_while_workers_start(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "s.toml").write_text(SMALL.replace("events = 30", "events = 100000"))
    process = started("run", "s.toml", "--jobs", "2", cwd=tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(children.read_text().split()) < 2:
        time.sleep(0.001)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert "Traceback" not in told, told
    assert process.returncode == 130, told


def test_ctrl_c_in_the_demo_names_no_option_that_it_lacks(tmp_path: Path) -> None:
    process = started("demo", "--jobs", "1", "--out", "demo", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("demo/*/*/events.jsonl")):
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert told.splitlines()[-1] == "fedraw: interrupted"
    assert process.returncode == 130, told


def test_ctrl_c_where_nothing_is_saved(tmp_path: Path) -> None:
    rows = "".join(f"c{i},l{i % 50},{i + 1}\n" for i in range(200_000))
    (tmp_path / "l.csv").write_text(f"client,label,count\n{rows}")
    process = started("audit", "l.csv", cwd=tmp_path)
    opened = Path(f"/proc/{process.pid}/fd")
    while not any(file.name == "l.csv" for file in map(_target, opened.iterdir())):
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert (told.strip(), process.returncode) == ("fedraw: interrupted", 130)
