"""Kill every part of a real deployment in turn: no accepted update is lost.

Each test prints a line for the table in docs/how-to/deploy.md. Run: make test-slow, or this file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flower.deployment import Deployment, Run

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "fault_app"
PATIENCE = 900.0
Record = dict[str, Any]


class Federation:
    """A deployment, the folder of its federation, and its log."""

    def __init__(self, deployment: Deployment, **config: Any) -> None:
        self.deployment = deployment
        self.folder = deployment.folder / "federation"
        self.config = {"fedraw.folder": str(self.folder)}
        self.config |= {f"fedraw.{key}": value for key, value in config.items()}

    def start(self) -> Run:
        return self.deployment.run_app(APP, self.config)

    def log(self, *kinds: str) -> list[Record]:
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [record for record in records if not kinds or record["kind"] in kinds]

    def arrivals(self, site: str | None = None) -> int:
        return sum(site in (None, record["client"]) for record in self.log("arrival"))

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, [r for r in self.log() if r["kind"] != "scores"][-15:]
            time.sleep(0.2)

    def check(self, arrivals: int) -> None:
        """Check that the log has every event once, and the end."""
        events = [record["event"] for record in self.log("arrival", "rejected")]
        assert events == list(range(1, len(events) + 1))
        assert self.arrivals() == arrivals
        assert self.log()[-1]["kind"] == "end"
        assert (self.folder / "model.safetensors").exists()


def sites(**faults: str) -> dict[str, dict[str, str]]:
    names = ("north", "south", "east")
    return {name: {"fault": faults[name]} if name in faults else {} for name in names}


def told(capsys: pytest.CaptureFixture[str], *cells: object) -> None:
    with capsys.disabled():
        print("\n| " + " | ".join(map(str, cells)) + " |")


def test_a_site_is_killed_in_training_and_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Deployment(tmp_path, sites(east="slow:5")) as deployment:
        federation = Federation(deployment, arrivals=30, absence=5.0)
        run = federation.start()
        federation.until(lambda: federation.arrivals("east") >= 1)
        deployment.kill_site("east")
        deployment.start_site("east", PATIENCE)
        before = federation.arrivals("east")
        federation.until(lambda: federation.arrivals("east") > before)
        assert run.wait(PATIENCE) == "finished:completed"
        federation.check(30)
        gone = [record["reason"] for record in federation.log("left", "note")]
        assert any("out of reach" in reason for reason in gone)
        outcome = f"{len(federation.log('left'))} left, {len(federation.log('joined'))} joined"
    told(capsys, "a site killed in training, started again", "completed, 30 of 30", outcome)


def test_a_site_never_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Deployment(tmp_path, sites(east="hang")) as deployment:
        federation = Federation(deployment, deadline=15.0, patience=2)
        assert federation.start().wait(PATIENCE) == "finished:completed"
        federation.check(12)
        reasons = [r["reason"] for r in federation.log("note", "left") if r.get("client") == "east"]
        assert any("no reply in 15 s" in reason for reason in reasons)
        ended = [record["reason"] for record in federation.log("left")]
    told(capsys, "a site that never returns", "completed, 12 of 12", "; ".join(ended))


@pytest.mark.parametrize("arrivals", [1, 7, 20])
def test_the_server_app_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrivals: int
) -> None:
    with Deployment(tmp_path, sites()) as deployment:
        federation = Federation(deployment, arrivals=arrivals + 6)
        federation.start()
        federation.until(lambda: federation.arrivals() >= arrivals)
        assert deployment.kill_server_app()
        accepted = federation.log("arrival")
        run = federation.start()
        assert run.wait(PATIENCE) == "finished:completed"
        federation.check(arrivals + 6)
        assert federation.log("arrival")[: len(accepted)] == accepted
        (restarted,) = federation.log("restarted")
        gap = f"gap of {restarted['gap']:.0f} s, {len(restarted['reasked'])} asked again"
    told(capsys, f"the server app killed after {arrivals} arrivals", "completed, all there", gap)


def test_the_superlink_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Deployment(tmp_path, sites()) as deployment:
        federation = Federation(deployment, arrivals=16)
        run = federation.start()
        federation.until(lambda: federation.arrivals() >= 4)
        deployment.kill_superlink()
        accepted = federation.log("arrival")
        deployment.start_superlink()
        status = run.wait(PATIENCE)
        if status != "finished:completed":  # the outage was too long for Flower
            assert federation.start().wait(PATIENCE) == "finished:completed"
        federation.check(16)
        assert federation.log("arrival")[: len(accepted)] == accepted
        restarts = len(federation.log("restarted"))
    told(capsys, "the SuperLink killed and started again", f"run {status}", f"{restarts} restarts")


def test_a_site_sends_invalid_replies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Deployment(tmp_path, sites(east="lies")) as deployment:
        federation = Federation(deployment, arrivals=40, patience=6)
        run = federation.start()
        federation.until(lambda: len(federation.log("rejected", "note")) >= 5)
        assert run.wait(PATIENCE) == "finished:completed"
        federation.check(40)
        reasons = [r["reason"] for r in federation.log("rejected", "note")]
    for words in (
        "NaN or infinite",
        "shape (2, 2, 2)",
        "in the name of 'north'",
        "count -5 is negative",
        "times the usual",
    ):
        told(capsys, words, next((reason for reason in reasons if words in reason), "MISSING"))
        assert any(words in reason for reason in reasons), reasons
