"""Labels inferred from updates on a real deployment: no site declares labels, or one lies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.flower.deployment import Deployment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
SITES: dict[str, dict[str, Any]] = {"north": {}, "south": {}, "east": {}, "west": {"delay": 3.0}}
HONEST = "return task.label_counts(my_site(context))"
LYING = """counts = task.label_counts(my_site(context))
    return counts | {"9": 2 * sum(counts.values())} if my_site(context) == "north" else counts"""


def app(folder: Path, old: str, new: str) -> Path:
    """The example app with another client."""
    copy = shutil.copytree(EXAMPLE, folder / "app")
    client = copy / "rarelabels" / "client_app.py"
    text = client.read_text(encoding="utf-8")
    assert text.count(old) == 1
    client.write_text(text.replace(old, new), encoding="utf-8")
    return copy


def run(app: Path, tmp_path: Path, **strategy: Any) -> Path:
    folder = tmp_path / "federation"
    config: dict[str, Any] = {"fedraw.folder": str(folder), "fedraw.pinned": True}
    chosen = {"name": "fedraw", "buffer": 3} | strategy
    config |= {f"fedraw.strategy.{key}": value for key, value in chosen.items()}
    with Deployment(tmp_path, SITES) as deployment:
        started = deployment.run_app(app, config)
        assert started.wait(1800) == "finished:completed", started.log()
    return folder


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


def fedraw(*words: object) -> str:
    command = [sys.executable, "-m", "fedraw", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("strategy", ["fedraw", "fedraw-replay"])
def test_labels_are_inferred_if_no_site_declares_any(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = app(tmp_path, ", label_counts=label_counts)", ")")
    folder = run(silent, tmp_path, name=strategy, labels="inferred")
    assert all(record["counts"] == {"not told": 1} for record in read(folder, "joined"))
    last = [record["metrics"] for record in read(folder, "evaluation")][-5:]
    rare = sum(metrics["AvgRare"] for metrics in last) / 5
    senders = [record["client"] for record in read(folder, "arrival")]
    with capsys.disabled():
        print(
            f"\n{strategy}, inferred: AvgRare {rare:.1f}, {senders.count('west')} of 40 from west"
        )
    assert rare > 50
    told = read(folder, "evaluation")[-1]["inferred"]["holders"]
    assert told["8"] == told["9"] == ["west"]
    assert "8 (west), 9 (west)" in fedraw("watch", folder, "--once")


def test_a_false_label_claim_is_logged(tmp_path: Path) -> None:
    folder = run(app(tmp_path, HONEST, LYING), tmp_path, labels="checked")
    doubts = read(folder, "doubted")
    assert {(record["client"], record["label"]) for record in doubts} == {("north", "9")}
    assert "client north: 9" in fedraw("watch", folder, "--once")
    page = tmp_path / "report.html"
    fedraw("report", folder, "--out", page)
    assert "the updates of client north (label 9) contradict" in page.read_text(encoding="utf-8")
