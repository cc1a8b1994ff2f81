"""Flower's simulation with its grid and client processes, and our server in its thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.flower.quiet import QUIET, ROOT

pytest.importorskip("ray")


@pytest.mark.slow
def test_a_federation_runs_in_flowers_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.one_simulation", str(folder)],
        cwd=ROOT,
        env={**os.environ, **QUIET, "FLWR_HOME": str(tmp_path / "flwr")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "training has ended: 12 updates accepted" in done.stdout + done.stderr
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {r["client"] for r in log if r["kind"] == "joined"} == {f"site-{i}" for i in range(4)}
    assert sum(r["kind"] == "arrival" for r in log) == 12
    assert [r["kind"] for r in log if r["kind"] in ("note", "rejected", "left")] == []
    assert log[0]["rare_labels"] == ["owl"]
    assert log[-1]["kind"] == "end"
    assert (load_file(folder / "model.safetensors")["w"] > 0).all()
