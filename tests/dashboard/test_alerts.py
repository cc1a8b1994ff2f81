"""Alerts fire once, reach a real receiver, and are given up if a receiver is down."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.process import dashboard
from tests.dashboard.test_dashboard import watched
from tests.eventlog.federation_log import END, START, STORY, write
from tests.eventlog.logs import as_bytes, record

from fedraw.dashboard import alerts as module
from fedraw.dashboard.alerts import (
    Alert,
    Alerts,
    AlertSettings,
    Command,
    Delivery,
    Rules,
    Webhook,
    conditions,
)

ROOT = Path(__file__).parents[2]
ALERT = Alert("recall_fell", "owl", "it fell", "fedraw", "runs", 3)
SERVER = """
import sys, time
from pathlib import Path
from tests.server.engine import Engine
Engine(Path(sys.argv[1])).accept(4)
print("ready", flush=True)
time.sleep(600)
"""


class Receiver(HTTPServer):
    """Answers with the given statuses in turn, then with 200; records the requests."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        server.headers.append(dict(self.headers))
        self.send_response(server.statuses.pop(0) if server.statuses else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    yield


def close(server: Receiver) -> None:
    server.shutdown()
    server.server_close()


def test_each_alert_fires_once(tmp_path: Path) -> None:
    log = write(tmp_path / "events.jsonl", STORY[:7])
    fired: list[Alert] = []
    rules = Alerts(Rules(recall_fell=20.0, site_silent=100.0, disk_low=1e9), fired.append)
    watcher = watched(tmp_path)

    def poll(*more: Any) -> list[tuple[str, str]]:
        with log.open("ab") as file:
            file.write(as_bytes(more, after=log))
        del fired[:]
        watcher.poll()
        rules.evaluate(watcher.views(sites=True))
        return [(alert.rule, alert.subject) for alert in fired]

    assert poll() == [("disk_low", "")]
    # When north gives up `owl`, east was last heard at 0 and west at 10, and it is 110.
    assert poll(*STORY[7:11]) == [
        ("last_holder_left", "owl"),
        ("site_silent", "west"),
        ("site_silent", "east"),
    ]
    assert "the last holder of label owl, north, left" in fired[0].text
    assert poll(*STORY[11:]) == []
    assert poll(
        record("joined", event=5, time=160.0, client="south", counts={"owl": 4}),
        record("evaluation", event=5, time=161.0, recall={"cat": 60.0, "owl": 60.0}),
    ) == [("recall_fell", "cat")]
    assert "fell by 30.0 points to 60.0 %" in fired[0].text
    assert poll(record("left", event=5, time=162.0, client="south")) == [
        ("last_holder_left", "owl")  # once more, because it had a holder in between
    ]
    log.write_bytes(log.read_bytes()[:-40] + b"\n")
    del fired[:]
    watcher.poll()
    rules.evaluate(watcher.views(sites=True))
    assert [alert.rule for alert in fired][-1] == "run_stopped"


def test_each_rule_has_its_own_limit_of_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both rare labels are at risk, but only `cat` has lost its last holder."""
    monkeypatch.setattr(module, "MAX_SUBJECTS", 2)
    labels = ["owl", "elk", "cat"]
    records = [
        replace(START, labels=labels, rare_labels=labels[:2]),
        record("joined", event=0, time=0.0, client="west", counts={"owl": 1, "elk": 1}),
        record("joined", event=0, time=0.0, client="north", counts={"cat": 1}),
        record("evaluation", event=1, time=1.0, recall=dict.fromkeys(labels, 90.0)),
        record("evaluation", event=2, time=2.0, recall=dict.fromkeys(labels, 10.0)),
        record("left", event=2, time=3.0, client="north"),
    ]
    write(tmp_path / "events.jsonl", records)
    (view,) = watched(tmp_path).views()
    fired = [(alert.rule, alert.subject) for alert in conditions(view, Rules(recall_fell=20.0))]
    assert ("last_holder_left", "cat") in fired
    assert [rule for rule, _ in fired].count("recall_fell") == 2


def test_a_webhook_is_retried_until_it_accepts(caplog: pytest.LogCaptureFixture) -> None:
    server = Receiver(500, 429)
    hook = Webhook(server.url, headers=("Authorization: Bearer secret",))
    with caplog.at_level(logging.WARNING):
        delivery = Delivery(AlertSettings(webhook=hook))
        delivery(ALERT)
        delivery.close()
    close(server)
    assert (delivery.delivered, delivery.failed, len(server.got)) == (1, 0, 3)
    assert server.got[-1]["alert"] == "recall_fell"
    assert server.headers[-1]["Authorization"] == "Bearer secret"
    assert "it fell" in caplog.text
    assert "secret" not in caplog.text


def test_a_receiver_that_refuses_or_is_down_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    refusing, down = Receiver(404), Receiver()
    close(down)
    for hook, failed in ((Webhook(refusing.url), 1), (Webhook(down.url, attempts=2), 3)):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            delivery = Delivery(AlertSettings(webhook=hook))
            for _ in range(3):
                delivery(ALERT)
            delivery.close()
        assert (delivery.failed, delivery.delivered) == (failed, 3 - failed)
        assert caplog.text.count("did not accept alert recall_fell") == failed
    close(refusing)
    assert len(refusing.got) == 3  # an alert that is refused is not sent again


def test_a_command_gets_the_alert_and_may_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.json"
    code = f"import sys; open({str(out)!r}, 'w').write(sys.stdin.read()); sys.exit('no')"
    with caplog.at_level(logging.ERROR):
        delivery = Delivery(AlertSettings(command=Command((sys.executable, "-c", code))))
        delivery(ALERT)
        delivery.close(60)
    assert json.loads(out.read_text())["subject"] == "owl"
    assert "exit code 1 no" in caplog.text


def test_alerts_beyond_the_queue_are_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 2)
    stuck = threading.Event()
    monkeypatch.setattr(Webhook, "__call__", lambda *_: stuck.wait(30))
    with caplog.at_level(logging.WARNING):
        delivery = Delivery(AlertSettings(webhook=Webhook("http://127.0.0.1:9/")))
        for _ in range(6):
            delivery(ALERT)
        stuck.set()
        delivery.close()
    assert caplog.text.count("it fell") == 6
    assert delivery.failed >= 3


def alerts_file(folder: Path, receiver: Receiver) -> Path:
    path = folder / "alerts.toml"
    path.write_text(f"[rules]\nrun_finished = true\n[webhook]\nurl = {receiver.url!r}\n")
    return path


def test_a_dashboard_delivers_alerts_while_it_follows_a_server(tmp_path: Path) -> None:
    receiver = Receiver()
    log = write(tmp_path / "federation/events.jsonl", STORY[:9])
    with dashboard(
        "federation", "--alerts", alerts_file(tmp_path, receiver), cwd=tmp_path
    ) as followed:
        for records, alert in ((STORY[9:], "last_holder_left"), ([END], "run_finished")):
            with log.open("ab") as file:
                file.write(as_bytes(records, after=log))
            followed.until(lambda: receiver.got)
            assert receiver.got.pop()["alert"] == alert
            assert f"alert {alert}" in followed.errors
    close(receiver)


@pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is not told elsewhere")
def test_a_killed_server_is_reported_at_once(tmp_path: Path) -> None:
    """A server may be silent for 600 s, but its lock ends with it."""
    receiver = Receiver()
    command = [sys.executable, "-c", SERVER, str(tmp_path / "federation")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        with dashboard(
            "federation", "--alerts", alerts_file(tmp_path, receiver), cwd=tmp_path
        ) as followed:
            followed.until(lambda: [run["event"] for run in followed.runs()] == [4])
            assert followed.runs()[0]["state"] == "running"
            server.kill()
            server.wait()
            followed.until(lambda: receiver.got)
    close(receiver)
    assert "the run stopped at event 4" in receiver.got[0]["text"]


def test_sigterm_ends_a_dashboard_after_its_alerts_are_delivered(tmp_path: Path) -> None:
    receiver = Receiver(*[503] * 2)  # so that the alert waits in the queue
    write(tmp_path / "federation/events.jsonl", [*STORY, END])
    with dashboard(
        "federation", "--alerts", alerts_file(tmp_path, receiver), cwd=tmp_path
    ) as followed:
        followed.until(lambda: receiver.got)
    assert followed.process.returncode == 0, followed.errors
    close(receiver)
    assert [alert["alert"] for alert in receiver.got].count("last_holder_left") == 3
    assert receiver.got[-1]["alert"] == "run_finished"
