"""The monitor process of a server: its dashboard, its alerts, and the death of the server."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.dashboard.test_alerts import Receiver, close
from tests.eventlog.federation_log import END, STORY, write
from tests.eventlog.logs import as_bytes
from tests.server.engine import Engine

from fedraw.dashboard.monitor import Monitor
from fedraw.errors import BadInput
from fedraw.eventlog.status import LabelRisk
from fedraw.flower.server import _show_log, read_server_settings
from fedraw.server.progress import ServerProgress, progress_text

SERVER = """
import sys, time
from pathlib import Path
from fedraw.dashboard.monitor import Monitor
Monitor(Path(sys.argv[1]), alerts=Path(sys.argv[2]))
print("ready", flush=True)
time.sleep(600)
"""


def until(ready: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def alerts_file(folder: Path, server: Receiver) -> Path:
    path = folder / "alerts.toml"
    path.write_text(f"[rules]\nrun_finished = true\n[webhook]\nurl = {server.url!r}\n")
    return path


def test_a_dashboard_and_alerts_beside_a_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    log = write(tmp_path / "federation/events.jsonl", STORY[:9])
    with caplog.at_level(logging.INFO, "fedraw.dashboard"):
        monitor = Monitor(log.parent, "127.0.0.1:0", None, alerts_file(tmp_path, receiver))
        until(lambda: "dashboard at" in caplog.text)
        address = re.search(r"http://\S+", caplog.text)
        assert address is not None
        with urllib.request.urlopen(f"{address[0]}health", timeout=30) as reply:
            assert json.loads(reply.read())["runs"] in (0, 1)
        with log.open("ab") as file:
            file.write(as_bytes(STORY[9:], after=log))
        until(lambda: receiver.got)
        with log.open("ab") as file:
            file.write(as_bytes([END], after=log))
        monitor.close()
    close(receiver)
    assert [alert["alert"] for alert in receiver.got] == ["last_holder_left", "run_finished"]
    assert "alert last_holder_left" in caplog.text


def test_a_killed_server_is_reported(tmp_path: Path) -> None:
    receiver = Receiver()
    log = write(tmp_path / "federation/events.jsonl", STORY[:9])
    command = [sys.executable, "-c", SERVER, log.parent, alerts_file(tmp_path, receiver)]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    server.kill()
    server.wait()
    server.stdout.close()
    until(lambda: receiver.got)
    close(receiver)
    assert "the run stopped at event 2" in receiver.got[0]["text"]


def test_the_operators_token_is_not_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, file = "a-secret-of-the-operator", tmp_path / "token"
    file.write_text(secret)
    with caplog.at_level(logging.INFO, "fedraw.dashboard"):
        monitor = Monitor(tmp_path / "federation", "127.0.0.1:0", file)
        until(lambda: "dashboard at" in caplog.text)
        monitor.close()
    assert f"/ for visitors with the token in {file}" in caplog.text
    assert secret not in caplog.text


def test_a_dead_monitor_is_reported_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedraw.dashboard"):
        monitor = Monitor(tmp_path / "federation", "127.0.0.1:0")
        until(lambda: caplog.text.count("dashboard at") == 1)
        first = monitor._process
        first.kill()
        until(lambda: caplog.text.count("dashboard at") == 2)
        monitor.close()
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        "the process of the dashboard and the alerts ended with exit code -9 and is started again"
    ]
    assert monitor._process is not first
    assert monitor._process.returncode == 0
    assert not monitor._keeper.is_alive()


def test_bad_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="must be a port or host:port"):
        Monitor(tmp_path, "nowhere")
    with pytest.raises(BadInput, match=r"cannot read .*none\.toml"):
        Monitor(tmp_path, alerts=tmp_path / "none.toml")


@pytest.mark.parametrize("port", ["8080", 8080])
def test_a_port_is_a_number_or_a_text(port: str | int) -> None:
    config = {"fedraw.arrivals": 3, "fedraw.dashboard": port}
    assert str(read_server_settings(config).dashboard) == "8080"


def test_progress_is_logged_at_an_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedraw.server"):
        engine = Engine(tmp_path, progress_every=30.0)
        engine.accept(1)
        engine.wait(100.0)
        engine.coordinator.abandon()
    lines = [r.message for r in caplog.records if "arrivals; version" in r.message]
    assert len(lines) == 3
    assert re.fullmatch(r"\d+ of 1,000 arrivals; version \d+; 4 sites; no label at risk", lines[0])


def test_the_text_of_a_progress_line(tmp_path: Path) -> None:
    log = write(tmp_path / "events.jsonl", STORY)
    line = ServerProgress(log.parent, 60.0)
    follower = line._follower
    follower.poll()
    detail = follower.detail()
    assert isinstance(detail.at_risk[0], LabelRisk)
    assert progress_text(follower.status(0.0), detail) == (
        "5 arrivals; version 5; GlobalAcc 80.0; AvgRare 60.0; 2 sites; "
        "labels at risk: owl (last holder gone)"
    )


def test_logs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("fedraw")
    before = list(logger.handlers), logger.level
    try:
        logger.handlers = []
        _show_log("json")
        _show_log("json")
        logging.getLogger("fedraw.server").info("training begins with %d sites", 4)
    finally:
        logger.handlers, level = before[0], before[1]
        logger.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "training begins with 4 sites"
