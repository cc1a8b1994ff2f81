"""The dashboard of a real federation of four sites, with TLS and keys, while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Tab, started
from tests.dashboard.process import dashboard
from tests.dashboard.test_alerts import Receiver, close
from tests.dashboard.test_page import Page
from tests.flower.deployment import Deployment

APP = Path(__file__).parents[2] / "examples" / "flower-app"
SITES: dict[str, dict[str, Any]] = {name: {} for name in ("north", "south", "east", "west")}
# Where screenshots are left for somebody to look at.
SHOTS = os.environ.get("FEDRAW_SHOTS")


def until(ready: Callable[[], Any], seconds: float = 900.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            if found := ready():
                return found
        except OSError:
            pass
        assert time.monotonic() < end
        time.sleep(0.5)


@pytest.mark.slow
def test_four_sites_are_followed_and_the_loss_of_two_labels_is_reported(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder, shots = tmp_path / "federation", Path(SHOTS) if SHOTS else tmp_path
    shots.mkdir(parents=True, exist_ok=True)
    receiver = Receiver()
    rules = tmp_path / "alerts.toml"
    rules.write_text(f"[webhook]\nurl = {receiver.url!r}\n")
    config: dict[str, Any] = {
        "fedraw.folder": str(folder),
        "fedraw.arrivals": 100_000,
        "fedraw.pinned": True,
        "fedraw.deadline": 600.0,
        "fedraw.absence": 100.0,
        "fedraw.snapshot_every": 5.0,
        "fedraw.progress_every": 10.0,
        "fedraw.keep_best": "AvgRare",
    }

    with (
        Deployment(tmp_path, SITES) as deployment,
        started(tmp_path / "profile") as browser,
        dashboard(folder, "--alerts", rules, cwd=tmp_path) as followed,
    ):
        url, shown = followed.url, followed.run
        run = deployment.run_app(APP, config)
        until(followed.runs)
        until(lambda: shown()["event"] >= 4 and shown()["lines"]["events"])
        assert {site["client"] for site in shown()["sites"]["rows"]} == set(SITES)
        check_metrics(followed.get("metrics")[1].encode())
        tab = Tab(browser)
        photograph(tab, url, shots / "four-sites")
        exported(folder, tmp_path)
        tensors = load_file(tmp_path / "current.safetensors")
        model = network()
        model.load_state_dict(tensors)
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())

        deployment.kill_site("west")  # the only holder of labels 8 and 9
        until(lambda: len(receiver.got) >= 2)
        assert {(a["alert"], a["subject"]) for a in receiver.got[:2]} == {
            ("last_holder_left", "8"),
            ("last_holder_left", "9"),
        }
        until(lambda: shown()["site_counts"]["away"] == 1)
        photograph(tab, url, shots / "west-is-gone")
        assert "arrivals; version" in run.log()
        assert "alert last_holder_left" in followed.errors
        told = len(receiver.got)
        deployment.kill_server_app()
        until(lambda: [a for a in receiver.got[told:] if a["alert"] == "run_stopped"])
        run.stop()
    close(receiver)


def check_metrics(text: bytes) -> None:
    assert b"fedraw_sites" in text
    promtool = shutil.which("promtool") or os.environ.get("PROMTOOL")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=text, check=False)
        assert done.returncode == 0


def exported(folder: Path, out: Path) -> None:
    for which in ("current", "best"):
        command = [sys.executable, "-m", "fedraw", "model", "export", str(folder), "--which", which]
        subprocess.run([*command, "-o", str(out / f"{which}.safetensors")], check=True)


def network() -> Any:
    sys.path.insert(0, str(APP))
    try:
        return import_module("rarelabels.task").network()
    finally:
        sys.path.remove(str(APP))


def photograph(tab: Tab, url: str, out: Path) -> None:
    for width in (390, 1280):
        for dark in (False, True):
            tab.open(Page(url), width=width, dark=dark)  # type: ignore[arg-type]
            until(
                lambda: (
                    tab.evaluate("document.querySelectorAll('#sites-table tbody tr').length") == 4
                )
            )
            high = tab.evaluate("document.documentElement.scrollHeight")
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            screen = {"width": width, "height": high, "deviceScaleFactor": 1, "mobile": False}
            tab.call("Emulation.setDeviceMetricsOverride", **screen)
            time.sleep(0.5)
            tab.screenshot(out.with_name(f"{out.name}-{width}-{'dark' if dark else 'light'}.png"))
            assert tab.complaints == []
