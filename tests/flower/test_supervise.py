"""The supervisor of runs, with a scripted `flwr` command."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.flower.deployment import Deployment, toml_pairs

from fedraw.flower.supervise import AWAY, Flower
from fedraw.server import supervise as module
from fedraw.server.supervise import (
    LONGEST_PAUSE,
    REFUSED_RUN,
    EngineFailed,
    EngineRefused,
    StopRequest,
    supervise,
)

# Answers from a list of [words it begins with, exit code, what it prints], in turn.
FLWR = """#!{python}
import json, sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch
folder = Path(__file__).parent
script = json.loads((folder / "script.json").read_text())
begins, code, reply = script.pop(0)
(folder / "script.json").write_text(json.dumps(script))
with (folder / "asked.txt").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if not " ".join(sys.argv[1:]).startswith(begins):
    sys.exit(f"expected {{begins}}, got {{sys.argv[1:]}}")
print(reply if isinstance(reply, str) else json.dumps(reply))
sys.exit(code)
"""


def flwr(folder: Path, *script: list[object]) -> str:
    program = folder / "flwr"
    program.write_text(FLWR.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "script.json").write_text(json.dumps(script))
    return str(program)


def run(number: int) -> list[object]:
    return ["run app here", 0, {"success": True, "run-id": number}]


def status(number: int, word: str, details: str = "N/A") -> list[object]:
    own = {"run-id": number, "status": word, "status-details": details}
    told = {"success": True, "runs": [own]}
    return [f"list here --run-id {number}", 0, told]


class Time:
    """A clock that advances by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def clock(self) -> float:
        return self.now


def kept(program: str, time: Time) -> int:
    return supervise(Flower("here", "app", ["a=1"], program), time.sleep, time.clock)


def test_a_failed_run_is_started_again_until_one_completes(tmp_path: Path) -> None:
    long = [status(1, "running")] * 5
    program = flwr(
        tmp_path,
        run(1),
        *long,
        status(1, "finished:failed"),
        run(2),
        status(2, "finished:completed"),
    )
    assert kept(program, Time()) == 0
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    assert [line for line in asked if line.startswith("run")] == [
        "run app here --run-config a=1 --format json"
    ] * 2
    assert json.loads((tmp_path / "script.json").read_text()) == []


def test_a_run_that_someone_stopped_stays_stopped(tmp_path: Path) -> None:
    assert kept(flwr(tmp_path, run(1), status(1, "finished:stopped")), Time()) == 0


def test_the_supervisor_gives_up_after_several_short_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = [entry for i in range(5) for entry in (run(i), status(i, "finished:failed"))]
    assert kept(flwr(tmp_path, *script), Time()) == 1
    assert "5 runs in a row failed at once; see: flwr log 4 here" in caplog.text


def test_the_reason_of_each_failed_run_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = [
        *(run(1), status(1, "finished:failed", "ServerApp failed with\nexception: no room")),
        *(run(2), status(2, "finished:failed")),
        *(run(3), status(3, "finished:completed")),
    ]
    assert kept(flwr(tmp_path, *script), Time()) == 0
    assert "run 1 has failed: ServerApp failed with exception: no room" in caplog.text
    assert "run 2 has failed; see: flwr log 2 here" in caplog.text
    assert "run 3 has failed" not in caplog.text


REFUSAL = f"ServerApp failed with exception: {REFUSED_RUN}: [fedraw] has the unknown key 'x'"


def test_a_first_run_that_the_server_app_refuses_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert kept(flwr(tmp_path, run(1), status(1, "finished:failed", REFUSAL)), Time()) == 2
    assert f"run 1 has failed: {REFUSAL}" in caplog.text
    assert "starting a new run" not in caplog.text


def test_a_later_run_that_the_server_app_refuses_is_tried_again(tmp_path: Path) -> None:
    script = [
        *(run(1), status(1, "finished:failed"), run(2), status(2, "finished:failed", REFUSAL)),
        *(run(3), status(3, "finished:completed")),
    ]
    assert kept(flwr(tmp_path, *script), Time()) == 0


@pytest.mark.slow
def test_flower_passes_a_refusal_on_to_the_supervisor(tmp_path: Path) -> None:
    """This uses a real SuperLink, so that the test notices other details in a new version."""
    app = Path(__file__).parents[2] / "examples" / "flower-app"
    config = toml_pairs(
        {"fedraw.folder": str(tmp_path / "federation"), "fedraw.strategy.buffer": 99}
    )
    with Deployment(tmp_path, {}, tls=False):
        command = [sys.executable, "-m", "fedraw.flower.supervise", str(app), "deployment"]
        command += ["--run-config", config]
        home = {**os.environ, "FLWR_HOME": str(tmp_path / "flower")}
        home["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{home['PATH']}"
        done = subprocess.run(
            command, env=home, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 2, done.stderr
        assert f"{REFUSED_RUN}: " in done.stderr and "99" in done.stderr
        assert "starting a new run" not in done.stderr
        assert not (tmp_path / "federation" / "events.jsonl").exists()


def test_the_pauses_for_an_absent_superlink_grow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"Using SuperLink: here\n\n{AWAY}. Please check your network connection."
    away: list[object] = ["run", 0, {"success": False, "error-message": said}]
    time = Time()
    assert kept(flwr(tmp_path, *[away] * 8, run(1), status(1, "finished:completed")), time) == 0
    assert time.slept[:8] == [5, 10, 20, 40, 80, 160, 300, LONGEST_PAUSE]
    assert AWAY in caplog.text


def test_flowers_message_about_an_absent_superlink(tmp_path: Path) -> None:
    """This uses the real `flwr`, so that the test notices another wording in a new version."""
    home = tmp_path / "config.toml"
    home.write_text('[superlink.here]\naddress = "127.0.0.1:9"\ninsecure = true\n')
    flower = str(Path(sys.executable).parent / "flwr")
    app = Path(__file__).parents[2] / "examples" / "flower-app"
    with patch.dict(os.environ, {"FLWR_HOME": str(tmp_path)}):
        with pytest.raises(EngineFailed, match=AWAY) as away:
            Flower("here", str(app), program=flower).start()
        with pytest.raises(EngineRefused, match="'elsewhere' not found"):
            Flower("elsewhere", str(app), program=flower).start()
    assert not isinstance(away.value, EngineRefused)


REFUSED: list[object] = ["run", 0, {"success": False, "error-message": "\nno such app"}]


def test_a_refused_first_run_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    assert kept(flwr(tmp_path, REFUSED), time) == 2
    assert "flwr run: no such app" in caplog.text
    assert not time.slept


def test_a_refusal_after_a_run_is_tried_again(tmp_path: Path) -> None:
    script = [run(1), status(1, "finished:failed"), REFUSED, run(2)]
    assert kept(flwr(tmp_path, *script, status(2, "finished:completed")), Time()) == 0


@pytest.mark.parametrize("reply", [{"success": True}, {"success": True, "run-id": None}])
def test_a_success_without_a_run_id_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reply: dict[str, object]
) -> None:
    """The run can be neither followed nor stopped, and a second one would compete with it."""
    time = Time()
    assert kept(flwr(tmp_path, ["run app here", 0, reply]), time) == 2
    assert "flwr run: Flower reported success without a run id" in caplog.text
    assert "find the run with 'flwr list here'" in caplog.text
    assert not time.slept


def test_a_list_without_the_status_of_the_run_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty: list[object] = ["list here --run-id 1", 0, {"success": True}]
    assert kept(flwr(tmp_path, run(1), empty, status(1, "finished:completed")), Time()) == 0
    assert "flwr list: Flower reported no status of run 1" in caplog.text


def test_while_the_superlink_is_away_nothing_is_started_twice(tmp_path: Path) -> None:
    away: list[object] = ["list", 1, "no json at all"]
    program = flwr(tmp_path, run(1), away, away, status(1, "finished:completed"))
    assert kept(program, Time()) == 0


def test_a_stop_signal_stops_the_run(tmp_path: Path) -> None:
    stop: list[object] = ["stop 7 here", 0, {"success": True}]
    flwr(tmp_path, run(7), stop)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "fedraw.flower.supervise", "app", "here"]
    with subprocess.Popen(command, env={**os.environ, "PATH": path}) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "asked.txt").exists() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / "asked.txt").read_text().splitlines()[-1].startswith("stop 7 here")


# Takes its time to stop a run, and writes down that it has done so.
SLOW_FLWR = """#!{python}
import json, sys, time
from pathlib import Path
folder = Path(__file__).parent
word = sys.argv[1]
if word == "stop":
    (folder / "stopping").touch()
    time.sleep(2)
    (folder / "stopped").touch()
(folder / word).touch()
print(json.dumps({{"success": True, "run-id": 7, "runs": [{{"status": "running"}}]}}))
"""


@pytest.mark.parametrize("to_the_group", [False, True], ids=["a kill", "Ctrl-C twice"])
def test_a_second_stop_signal_does_not_leave_the_run_running(
    tmp_path: Path, to_the_group: bool
) -> None:
    """A terminal sends Ctrl-C to the supervisor and to the `flwr` that it has started."""
    program = tmp_path / "flwr"
    program.write_text(SLOW_FLWR.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "fedraw.flower.supervise", "app", "here"]

    def send(process: subprocess.Popen[bytes]) -> None:
        if to_the_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM)

    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        appears(tmp_path / "run")
        time.sleep(0.5)
        send(process)
        appears(tmp_path / "stopping")
        send(process)
        send(process)
        assert process.wait(60) == 0
        assert (tmp_path / "stopped").exists()


def appears(path: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.02)


def test_a_run_that_cannot_be_stopped_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Flower):
        def start(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return 7

        def stop(self, run: int) -> None:
            raise EngineFailed("flwr stop: no route")

    stop = StopRequest()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with patch.object(module, "STOP", stop), pytest.raises(SystemExit) as end:
            supervise(Stuck("x", "app"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 1
    assert "run 7 may still be running: flwr stop: no route" in caplog.text


def test_a_stop_signal_during_a_start_stops_that_run() -> None:
    """The id of a run is known only after Flower has replied."""
    stopped: list[int] = []

    class Slow(Flower):
        def start(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            return 7

        def stop(self, run: int) -> None:
            stopped.append(run)

    stop = StopRequest()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with patch.object(module, "STOP", stop), pytest.raises(SystemExit):
            supervise(Slow("x", "app"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == [7]
