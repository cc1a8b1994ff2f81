"""Real runs watched by real processes: while they run, after they were killed, when they end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.cli.command import SMALL, fedraw
from tests.eventlog import federation_log

# The small spec, slower and without an end.
SPEC = (
    SMALL.partition("[training]")[0]
    + """
[training]
epochs = 4
[run]
events = 100000
evaluate_every = 20
seeds = [1]
"""
)
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")


def watch(*arguments: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    with patch.dict(os.environ, {"COLUMNS": "80", **env}):
        return fedraw("watch", *arguments, cwd=cwd)


def heed_ctrl_c() -> None:
    """Tests that run in the background of a shell inherit an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(cwd: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`fedraw run` in a process of its own, from the moment it has written two evaluations."""
    command = [sys.executable, "-m", "fedraw", "run", "spec.toml", "--jobs", "1", *more]
    log = cwd / "runs/spec/seed-1/events.jsonl"
    begun = time.time()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c
    )
    try:
        wait_until(lambda: log.exists() and log.stat().st_mtime > begun)
        wait_until(lambda: log.read_bytes().count(b'"evaluation"') >= 2)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


class Terminal:
    """A command on a terminal of 80 columns and 24 rows."""

    def __init__(self, *arguments: object, cwd: Path, **env: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "fedraw", "watch", *map(str, arguments)]
        inherited = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", **env}, preexec_fn=heed_ctrl_c,
        )  # fmt: skip
        os.close(slave)
        self.output = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def read_until(self, text: str, times: int = 1) -> None:
        """Until so many different matches of a pattern were shown."""
        until = time.monotonic() + 120
        while len(set(re.findall(text, self.output))) < times:
            assert time.monotonic() < until, f"{text!r} is not in {self.output[-3000:]}"
            self._read(0.1)

    def wait(self) -> int:
        until = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < until:
            self._read(0.1)
        code = self.process.wait(timeout=60)
        while self._read(0.1):
            pass
        return code

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            content = os.read(self._master, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.output += content.decode(errors="replace")
        return bool(content)

    @property
    def lines(self) -> list[str]:
        """Of all frames; each begins in the upper left corner, the last on the screen before."""
        apart = self.output.replace("\x1b[H", "\n").replace("\x1b[?1049l", "\n")
        return re.split(r"[\r\n]+", ESCAPE.sub("", apart))


def test_a_run_is_watched_killed_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    log = tmp_path / "runs/spec/seed-1/events.jsonl"
    with running(tmp_path) as process:
        frame = watch("runs/spec", cwd=tmp_path).stdout
        assert "fedraw  seed 1  running" in frame
        assert re.search(r"event \d+ of 100000 .* left", frame)
        with Terminal("runs/spec", "--every", "0.2", cwd=tmp_path) as terminal:
            terminal.read_until("rejected")
            terminal.read_until(r"event (\d+) of 100000", times=5)
            terminal.read_until(r"\d/s  \d")  # measured for a second at least
            process.kill()
            process.wait()
            with log.open("ab") as file:
                file.write(b'{"kind":"arrival","event":9999')
            os.utime(log, (time.time() - 100,) * 2)
            terminal.read_until("stopped")
            assert_left_cleanly(terminal)

    killed = watch("runs/spec", cwd=tmp_path)
    assert killed.returncode == 0
    # On a slow machine the run may have come to its first checkpoint before it was killed.
    told = r"nothing written since \S+, \d min \d\d s ago; (no checkpoint|checkpoint at event)"
    assert re.search(told, killed.stdout)
    assert int(re.findall(r"event (\d+) of", killed.stdout)[0]) < 9999

    with running(tmp_path, "--resume") as process:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    os.utime(log, (time.time() - 100,) * 2)
    interrupted = watch("runs/spec/seed-1", cwd=tmp_path).stdout
    assert "; checkpoint at event" in interrupted
    assert "fedraw run SPEC.toml --out runs/spec --resume continues from there" in interrupted


def assert_left_cleanly(terminal: Terminal) -> None:
    """Ctrl-C gives the screen and the cursor back, and leaves the last frame."""
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == 0
    assert max(map(len, terminal.lines)) <= 80
    assert "Traceback" not in terminal.output
    assert terminal.output.count("\x1b[?1049h") == terminal.output.count("\x1b[?1049l") == 1
    assert terminal.output.rfind("\x1b[?25h") > terminal.output.rfind("\x1b[?25l")
    assert "rejected" in terminal.output.split("\x1b[?1049l")[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "spec.toml").write_text(SPEC)
    done = fedraw("run", "spec.toml", "--set", "run.events=60", "--seeds", "1,2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}])
def test_off_a_terminal_one_frame_is_printed(env: dict[str, str], finished: Path) -> None:
    done = watch("runs/spec", cwd=finished, **env)
    assert (done.returncode, done.stderr) == (0, "")
    if "FORCE_COLOR" not in env:
        assert "\x1b" not in done.stdout
    lines = ESCAPE.sub("", done.stdout).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "seed", "state", "progress", "GlobalAcc", "AvgRare", "left"]
    assert [line.split()[1:5] for line in lines[1:3]] == [
        ["1", "finished", "100", "%"],
        ["2", "finished", "100", "%"],
    ]
    assert lines[4].startswith("fedraw  seed 2  finished")


def test_on_a_terminal_once_without_colour_has_no_escape_codes(finished: Path) -> None:
    with Terminal("runs/spec", "--once", cwd=finished, NO_COLOR="1") as terminal:
        assert terminal.wait() == 0
    assert "finished" in terminal.output
    assert "\x1b" not in terminal.output
    assert max(map(len, terminal.lines)) <= 80


def test_a_dumb_terminal_gets_one_frame(finished: Path) -> None:
    with Terminal("runs/spec", cwd=finished, TERM="dumb") as terminal:
        assert terminal.wait() == 0
    assert "finished" in terminal.output
    assert "\x1b" not in terminal.output


def test_it_ends_by_itself_when_all_runs_are_finished(finished: Path) -> None:
    log = finished / "runs/spec/seed-2/events.jsonl"
    whole = log.read_bytes()
    *_, last = whole.splitlines(keepends=True)
    log.write_bytes(whole[: -len(last)])
    summary = (log.parent / "summary.json").rename(log.parent / "later")
    with Terminal("runs/spec/seed-2", "--every", "0.1", cwd=finished) as terminal:
        terminal.read_until("running")
        with log.open("ab") as file:
            file.write(last)
        summary.rename(log.parent / "summary.json")
        assert terminal.wait() == 0
    last_frame = ESCAPE.sub("", terminal.output.split("\x1b[?1049l")[-1])
    assert "fedraw  seed 2  finished" in last_frame, "it stays in sight"
    assert "rejected      none" in last_frame


def test_json_has_the_same_facts(finished: Path) -> None:
    done = watch("runs/spec", "--json", cwd=finished)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [run["seed"] for run in document["runs"]] == [1, 2]
    first = document["runs"][0]
    summary = json.loads((finished / "runs/spec/seed-1/summary.json").read_text())
    assert first["state"] == "finished"
    assert first["event"] == summary["events"] == 60
    for metric in ("GlobalAcc", "AvgRare"):
        assert first["metrics"][metric] == summary["tail"][metric]
    assert first["participation"]["BufPres"] == summary["metrics"]["BufPres"]
    assert {trend["label"]: trend["recall"] for trend in first["labels"]} == summary["recall"]


@pytest.mark.parametrize(
    ("content", "argument", "message"),
    [
        (None, "nothing", "nothing does not exist; name a folder that 'fedraw run' has written"),
        (None, ".", "holds no run"),
        ("hello\n", "events.jsonl", "line 1 is not a record of an event log"),
        ("hello", ".", "line 1 is not a record of an event log"),
        ('{"kind":"start","format":9}\n', ".", "has format 9, and this fedraw reads format 3"),
    ],
)
def test_bad_input_gets_a_message_and_exit_code_2(
    content: str | None, argument: str, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_text(content)
    done = watch(argument, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_the_log_of_a_real_server(tmp_path: Path) -> None:
    federation_log.write(tmp_path / "federation" / "events.jsonl", federation_log.STORY)
    done = watch("federation", "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "event 5  4.0/min"
    assert "members       2 now, 3 ever, 1 left: west" in lines
    assert "server        1 restart, last at event 2 after 1 min 15 s, 2 asked again" in lines
    assert "notes         2 notes, 1 × quarantine" in lines
    assert "  event 4: node 9 did not tell who it is" in lines
    told = json.loads(watch("federation", "--json", cwd=tmp_path).stdout)
    assert told["runs"][0]["history"]["away"][0]["client"] == "west"
