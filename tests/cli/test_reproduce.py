"""fedraw reproduce as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def fedraw(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedraw", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


def test_dynamics_prints_json_and_writes_both_forms(tmp_path: Path) -> None:
    options = ("--seeds", 1, "--out", "again", "--json")
    done = fedraw("reproduce", "dynamics", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "again" / "dynamics.json").read_text())
    rows = {(row["artefact"], row["row"], row["metric"]): row for row in document["rows"]}
    same = rows["Table III", "EMNIST, FedRAW", "BufPres"]
    assert same["mean"] == rows["Table S10", "2", "BufPres"]["mean"]
    assert (same["paper"], same["sd"]) == (72.7, 0.0)
    largest = rows["Table S8", "attack, no defence", "AttackerWeightMax"]
    assert round(largest["mean"], 3) == largest["paper"] == 0.526
    text = (tmp_path / "again" / "dynamics.md").read_text()
    assert "`fedraw reproduce dynamics --seeds 1`" in text
    assert "## Table S8" in text
    assert {path.name for path in tmp_path.iterdir()} == {"again"}


def test_an_unknown_artefact_is_bad_input(tmp_path: Path) -> None:
    done = fedraw("reproduce", "dynamic", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown artefact 'dynamic'; did you mean 'dynamics'?" in done.stderr
