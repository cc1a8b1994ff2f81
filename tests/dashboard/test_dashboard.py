"""The dashboard as a process: its content, its access rules, and bad folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cli.command import fedraw
from tests.dashboard.process import dashboard
from tests.eventlog.federation_log import END, START, STORY, write
from tests.eventlog.logs import arrival, as_bytes, record
from tests.report.hand_made import COMMON, RARE, write_run

from fedraw.dashboard.alerts import AlertSettings
from fedraw.dashboard.app import MAX_STREAMS, health_of, overview_of
from fedraw.dashboard.metrics import exposition
from fedraw.dashboard.serve import Address, bind, read_token
from fedraw.dashboard.view import MOST_SITES, full, overview, sites_page
from fedraw.dashboard.watcher import Watcher
from fedraw.errors import BadInput
from fedraw.eventlog.records import StartRecord

NASTY = "<b>owl</b>\x1b[2J\"\\\n</script><script>alert('x')</script>"


def test_a_run_is_followed_from_before_its_folder_exists_to_its_end(tmp_path: Path) -> None:
    """One process sees a late folder, growth, a stream, metrics, a rotated log and the end."""
    log = tmp_path / "later" / "events.jsonl"
    with dashboard("later", cwd=tmp_path) as seen:
        assert json.loads(seen.get("/api/runs")[1])["problems"] == [
            "waiting for later, which does not exist yet"
        ]
        assert seen.get("/health") == (
            200,
            '{"status":"ok","runs":0,"stopped":0,"unreadable":0}',
        )
        write(log, STORY[:7])
        seen.until(lambda: [run["event"] for run in seen.runs()] == [2])
        with log.open("ab") as file:
            file.write(as_bytes(STORY[7:], after=log))
        seen.until(lambda: seen.runs()[0]["event"] == 5)
        shown = seen.run()
        assert shown["risks"][0]["label"] == "owl"
        assert [site["client"] for site in shown["sites"]["rows"]] == ["west", "north", "east"]
        assert shown["site_counts"]["quarantined"] == 1
        assert shown["restarts"]["total"] == 1
        assert 'label="owl",reason="last holder gone"' in seen.get("/metrics")[1]
        assert first_events(seen.url, shown["id"]) == ["overview", "run", "now"]
        assert seen.get("/nothing")[0] == 404
        assert seen.get("/api/runs/none")[0] == 404
        assert seen.get(f"/api/runs/{shown['id']}/sites?offset=-1")[0] == 404

        whole = log.read_bytes()
        log.write_bytes(whole.replace(b"owl", b"emu"))
        seen.until(lambda: "was altered" in (seen.runs()[0]["problem"] or ""))
        status, text = seen.get("/health")
        assert (status, json.loads(text)["unreadable"]) == (503, 1)
        log.unlink()
        seen.until(lambda: "cannot read" in (seen.runs()[0]["problem"] or ""))
        log.write_bytes(b'{"kind":"start","format":99}\n')
        seen.until(lambda: "has format 99" in (seen.runs()[0]["problem"] or ""))
        log.write_bytes(whole)
        with log.open("ab") as file:
            file.write(as_bytes([END], after=log))
        seen.until(lambda: seen.runs()[0]["state"] == "finished")
        assert seen.runs()[0]["problem"] is None
        assert "Traceback" not in seen.errors


def stream_of(url: str, run: str) -> socket.socket:
    parts = urlsplit(url)
    stream = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)
    stream.sendall(f"GET /events?run={run} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return stream


def first_events(url: str, run: str) -> list[str]:
    with stream_of(url, run) as stream:
        text = b""
        while b"event: now" not in text:
            text += stream.recv(1 << 16)
    return [line[7:] for line in text.decode().splitlines() if line.startswith("event: ")]


def test_clients_that_never_read_are_limited(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", STORY)
    with dashboard(tmp_path, cwd=tmp_path) as seen:
        run = seen.until(seen.runs)[0]["id"]
        idle = [stream_of(seen.url, run) for _ in range(MAX_STREAMS)]
        try:
            seen.until(lambda: b" 503 " in answer(seen.url, run))
            assert seen.get("/health")[0] == 200
        finally:
            for stream in idle:
                stream.close()
        seen.until(lambda: b" 200 " in answer(seen.url, run))


def answer(url: str, run: str) -> bytes:
    with stream_of(url, run) as stream:
        return stream.recv(20)


def test_without_a_token_only_this_machine_has_access(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", STORY)
    with dashboard(tmp_path, cwd=tmp_path) as seen:
        assert seen.token == ""
        assert seen.get("/", Host="evil.example")[0] == 403
        assert seen.get("/")[0] == 200
    with dashboard(tmp_path, "--host", "0.0.0.0", cwd=tmp_path) as seen:
        seen.url = f"http://127.0.0.1:{urlsplit(seen.url).port}/"
        assert len(seen.token) >= 32
        for path in ("/", "/events", "/metrics", "/api/runs", "/?token=wrong"):
            status, text = seen.get(path)
            assert (status, "token" in text) == (401, True), path
        assert seen.get("/health")[0] == 200
        known = {"Authorization": f"Bearer {seen.token}"}
        assert "fedraw_arrivals_total" in seen.get("/metrics", **known)[1]
        assert seen.get("/", Cookie=f"a=b; fedraw-token={seen.token}")[0] == 200
        assert seen.get(f"/?token={seen.token}")[0] == 401  # redirected, and no cookie is kept here


def test_the_operators_token_is_not_printed(tmp_path: Path) -> None:
    secret = "a-secret-of-the-operator"
    with dashboard(tmp_path, cwd=tmp_path, FEDRAW_DASHBOARD_TOKEN=secret) as seen:
        assert seen.get("/api/runs")[0] == 401
        assert seen.get("/api/runs", Authorization=f"Bearer {secret}")[0] == 200
        assert "visitors with the token in the environment variable" in seen.errors
        assert secret not in seen.errors


def test_bad_input_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short")
    (tmp_path / "alerts.toml").write_text("[rules]\nrecal_fell = 3\n")
    (tmp_path / "hook.toml").write_text("[webhook]\nurl = 'file:///etc/passwd'\n")
    here = Address()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases: dict[str, Callable[[], Any]] = {
            f"port {port} of 127.0.0.1 is in use": lambda: bind(Address("127.0.0.1", port)),
            "cannot listen at no.such.invalid": lambda: bind(Address("no.such.invalid", 0)),
            "cannot read the token from": lambda: read_token(here, tmp_path / "none"),
            "has 5 characters; use at least 16": lambda: read_token(here, tmp_path / "token"),
            "cannot read": lambda: AlertSettings.from_file(tmp_path / "none.toml"),
            "did you mean 'recall_fell'": lambda: AlertSettings.from_file(tmp_path / "alerts.toml"),
            "is not a URL; give one that begins": lambda: AlertSettings.from_file(
                tmp_path / "hook.toml"
            ),
        }
        for words, act in cases.items():
            with pytest.raises(BadInput, match=re.escape(words)):
                act()
        done = fedraw("dashboard", "runs", "--port", port, cwd=tmp_path)
        assert (done.returncode, "choose another port with --port" in done.stderr) == (2, True)


def watched(*folders: Path) -> Watcher:
    watcher = Watcher(folders)
    assert watcher.poll()
    return watcher


def test_ten_thousand_sites_are_shown_in_pages(tmp_path: Path) -> None:
    start = StartRecord(
        origin="simulation", name="fedraw", seed=1, events=None, labels=["cat"], rare_labels=[],
        spec={},
    )  # fmt: skip
    joined = [record("joined", client=f"site {n}", counts={"cat": 1}) for n in range(10_000)]
    (tmp_path / "events.jsonl").write_bytes(as_bytes([start, *joined]))
    watcher = watched(tmp_path)
    view = watcher.view(watcher.views()[0].id)
    assert view is not None
    shown = full(view)
    assert len(shown["sites"]["rows"]) == MOST_SITES
    assert len(json.dumps(shown)) < 100_000
    assert sites_page(view, 9_900)["rows"][-1]["client"] == "site 9999"
    assert sites_page(view, search="SITE 77")["total"] == 111
    text = exposition(lambda: watcher.views(sites=True))().decode()
    assert 'state="training"} 10000.0' in text
    assert "site 9999" not in text


def test_the_users_own_metrics_are_shown_and_exported(tmp_path: Path) -> None:
    """The last reports of training are 0.5 at west and 0.25 at north; an evaluation has an AUC."""
    reports = [("north", 4.0), ("west", 0.5), ("north", 0.25)]
    arrivals = [
        arrival(event=6 + i, time=9.0, client=client, metrics={"train_loss": loss})
        for i, (client, loss) in enumerate(reports)
    ]
    evaluated = record("evaluation", event=8, time=9.0, own={"auc": 0.98765, "dice": None})
    write(tmp_path / "events.jsonl", [*STORY, *arrivals, evaluated])
    (view,) = watched(tmp_path).views()
    assert full(view)["own"] == [
        {"metric": "auc", "source": "evaluation", "value": "0.9877"},
        {"metric": "dice", "source": "evaluation", "value": None},
        {"metric": "train_loss", "source": "training", "value": "0.375"},
    ]
    text = exposition(lambda: [view])().decode()
    lines = [line for line in text.splitlines() if line.startswith("fedraw_own_metric{")]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["0.98765", "0.375"]
    assert 'metric="train_loss"' in lines[1] and 'source="training"' in lines[1]


def test_names_are_never_interpreted(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 1, [(90.0, 10.0)], rare=NASTY)
    watcher = watched(tmp_path)
    text = exposition(lambda: watcher.views(sites=True))().decode()
    assert all(line.startswith(("#", "fedraw_")) for line in text.splitlines())
    assert "\x1b" not in text
    assert overview(watcher.views(), [])["runs"][0]["rare_at_risk"] == 1


def test_series_of_a_run_do_not_change_when_another_run_appears(tmp_path: Path) -> None:
    def series() -> set[str]:
        text = exposition(watcher.views)().decode()
        return set(re.findall(r"^fedraw_arrivals_total\{.*\}", text, re.M))

    write(tmp_path / "a/events.jsonl", STORY)
    watcher = watched(tmp_path)
    (first,) = series()
    other = [replace(START, spec={"strategy": {"buffer": 7}}), *STORY[1:]]
    write(tmp_path / "b/events.jsonl", other)
    watcher._next_search = 0.0
    watcher.poll()
    assert len({view.status.name for view in watcher.views()}) == 2
    assert first in series()
    assert len(series()) == 2


def test_a_run_says_when_its_rare_labels_were_recognised(tmp_path: Path) -> None:
    """The mean of five evaluations is 52 from the second one on, and never 80."""
    write_run(tmp_path, "fedraw", 1, [(90.0, rare) for rare in (0.0, 40.0, 55.0, 55.0, 55.0, 55.0)])
    (view,) = watched(tmp_path).views()
    shown = full(view)
    assert shown["reached"] == [2.0, None]
    reached = {row["label"]: row["reached"] for row in shown["labels"]["rows"]}
    assert reached == {RARE: [2.0, None], COMMON: None}, "only rare labels are watched"


def test_runs_side_by_side_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("fedraw", "fedfa"):
        write_run(tmp_path, name, 1)
    bad = write_run(tmp_path, "fedbuff", 2) / "seed-2/events.jsonl"
    bad.write_bytes(bad.read_bytes()[200:])
    watcher = watched(tmp_path)
    rows = {run["name"]: run for run in overview(watcher.views(), watcher.problems)["runs"]}
    assert rows["fedraw"]["metrics"] == {"GlobalAcc": 75.0, "AvgRare": 35.0}, "of both evaluations"
    assert rows["fedfa"]["curve"] == [[1, 60.0, 20.0], [2, 90.0, 50.0]]
    assert "is not a record of an event log" in rows["seed-2"]["problem"]
    assert health_of(watcher)[1] == 503
    shutil.rmtree(bad.parent)
    watcher.poll()
    assert sum(run["problem"] is not None for run in overview(watcher.views(), [])["runs"]) == 1


def test_what_is_still_being_read_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 1)
    write_run(tmp_path, "fedraw", 2, labels_beside=20_000)  # too long for one read
    watcher = Watcher([tmp_path])
    state = overview_of(watcher)
    assert (state["runs"], state["loading"]) == ([], "Loading: the folders are searched for runs.")
    watcher.poll(0.0)
    assert overview_of(watcher)["loading"] == "Loading: 1 of 2 runs read to the end."
    watcher.poll()
    assert overview_of(watcher)["loading"] is None
    page = (files("fedraw.dashboard") / "page.html").read_text(encoding="utf-8")
    assert '<p class="note" id="loading">Loading: the runs have not been read yet.</p>' in page


def test_runs_beyond_the_limit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraw.dashboard.watcher.MAX_RUNS", 1)
    for seed in (1, 2):
        log = write_run(tmp_path, "fedraw", seed) / f"seed-{seed}/events.jsonl"
        os.utime(log, (seed, seed))
    (problem,) = watched(tmp_path).problems
    assert problem.startswith("1 run not shown, because only the 1 that were written last are: ")
    assert problem.endswith("seed-1; give fewer folders")


def test_a_read_only_folder_is_followed(tmp_path: Path) -> None:
    log = write(tmp_path / "copy" / "events.jsonl", [*STORY, END])
    before = sorted(path.name for path in log.parent.iterdir())
    log.chmod(stat.S_IRUSR)
    log.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert overview(watched(log.parent).views(), [])["runs"][0]["state"] == "finished"
    finally:
        log.parent.chmod(stat.S_IRWXU)
    assert sorted(path.name for path in log.parent.iterdir()) == before


@pytest.mark.parametrize("runs", [1, 3])
def test_a_view_is_computed_once_per_change(tmp_path: Path, runs: int) -> None:
    for seed in range(runs):
        write_run(tmp_path, "fedraw", seed, finished=False)
    watcher = watched(tmp_path)
    before = [view.detail for view in watcher.views()]
    watcher.poll()
    assert all(a is b.detail for a, b in zip(before, watcher.views(), strict=True))
    log = tmp_path / "fedraw/seed-0/events.jsonl"
    with log.open("ab") as file:
        file.write(as_bytes([arrival(event=3, client="b")], after=log))
    watcher.poll()
    assert watcher.views()[0].status.event == 3
