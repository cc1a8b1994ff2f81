"""The example app as an operator runs it: real processes, TLS, authenticated sites."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.flower.deployment import CLIENT_APP, Deployment

APP = Path(__file__).parents[2] / "examples" / "flower-app"
SITES: dict[str, dict[str, Any]] = {"north": {}, "south": {}, "east": {}, "west": {"delay": 30.0}}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


@pytest.mark.slow
def test_a_federation_from_the_first_site_to_the_end(tmp_path: Path) -> None:
    """One run; it takes about a minute on an idle machine."""
    folder = tmp_path / "federation"
    near: dict[str, dict[str, Any]] = {**SITES, "west": {"delay": 2.0}}
    with Deployment(tmp_path, near) as deployment:
        config: dict[str, Any] = {
            "fedraw.arrivals": 10,
            "fedraw.pinned": True,
            "fedraw.sites": ",".join(near),
        }
        run = deployment.run_app(APP, {"fedraw.folder": str(folder), **config})
        assert run.wait(600) == "finished:completed", run.log()
        assert not [p for p in deployment.processes() if p.command == CLIENT_APP]
    assert {record["client"] for record in read(folder, "joined")} == set(near)
    assert len(read(folder, "arrival")) == 10
    assert read(folder, "start")[0]["rare_labels"] == ["8", "9"]
    assert set(read(folder, "evaluation")[-1]["recall"]) == set("0123456789")
    assert (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_fedraw_keeps_the_slow_sites_labels_and_fedfa_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    with Deployment(tmp_path, SITES) as deployment:
        for name in ("fedraw", "fedfa"):
            folder = tmp_path / name
            config = {"fedraw.folder": str(folder), "fedraw.strategy.name": name}
            more = {"fedraw.pinned": True, "fedraw.strategy.buffer": 4}  # as the README's table
            run = deployment.run_app(APP, {**config, **more})
            assert run.wait(1800) == "finished:completed", run.log()
            evaluations = [record["metrics"] for record in read(folder, "evaluation")][-5:]
            means = [sum(m[key] for m in evaluations) / 5 for key in ("GlobalAcc", "AvgRare")]
            west = sum(record["client"] == "west" for record in read(folder, "arrival"))
            rows.append((name, *means, west))
    with capsys.disabled():
        print(f"\n{os.cpu_count()} cores; mean of the last five evaluations of 40 arrivals")
        for name, accuracy, rare, west in rows:
            print(f"| {name} | {accuracy:.1f} | {rare:.1f} | {west} of 40 from west |")
    assert rows[0][2] >= rows[1][2] + 30
