"""A long federation with sites that die and return: memory and processes do not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.flower.quiet import QUIET, ROOT
from tests.flower.soak import ARRIVALS, BUFFER, MARK, SETTINGS, SITES, marked

pytest.importorskip("ray")


def run(folder: Path, mark: str) -> tuple[str, float]:
    """The output, and the seconds it took."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.soak", str(folder)],
        cwd=ROOT,
        env={**os.environ, **QUIET, "FLWR_HOME": str(folder.parent / "flwr"), MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout, time.monotonic() - began


def between(samples: list[dict[str, float]], begin: float, end: float) -> list[dict[str, float]]:
    return [sample for sample in samples if begin <= sample["time"] <= end]


@pytest.mark.slow
def test_five_hundred_arrivals_with_deaths_and_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mark = tmp_path / "run", uuid4().hex
    output, seconds = run(folder, mark)
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    facts = json.loads((folder / "soak.json").read_text())
    samples, epoch = facts["samples"], log[0]["epoch"]
    times = [epoch + r["time"] for r in log if r["kind"] == "arrival"]

    def count(kind: str, words: str = "") -> int:
        return sum(r["kind"] == kind and words in r.get("reason", "") for r in log)

    def at(arrival: int) -> dict[str, float]:
        return min(samples, key=lambda sample: abs(sample["time"] - times[arrival - 1]))

    def usual(key: str, begin: int, end: int) -> float:
        return median(s[key] for s in between(samples, times[begin - 1], times[end - 1]))

    marks = range(100, ARRIVALS + 1, 100)
    table: dict[str, Any] = {
        "arrivals": len(times),
        "seconds": f"{seconds:.0f}, of training {times[-1] - epoch:.0f}",
        "server, MB resident": " ".join(f"{at(n)['rss']:.0f}" for n in marks),
        "server, MB of its own": " ".join(f"{at(n)['own']:.0f}" for n in marks),
        "median MB, 100-200": f"{usual('rss', 100, 200):.1f} ({usual('own', 100, 200):.1f} own)",
        "median MB, 400-500": f"{usual('rss', 400, 500):.1f} ({usual('own', 400, 500):.1f} own)",
        "leaves": f"{count('left')}: {count('left', 'out of reach')} out of reach, "
        f"{count('left', 'quarantined')} quarantined",
        "returns": count("joined") - SITES,
        "out of sight": facts["spells"],
        "failed trainings": count("note", "this site is ill") + count("left", "this site is ill"),
        "refused": count("rejected"),
        "late": count("note", "a late update"),
        "most files in updates/": max(s["files"] for s in samples),
        "processes": facts["processes"],
    }
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name:<24}{value}" for name, value in table.items()))

    assert len(times) == ARRIVALS
    assert log[-1]["kind"] == "end" and f"{ARRIVALS} updates accepted" in output
    assert count("left") >= 10 and count("joined") - SITES >= 5
    assert count("note", "this site is ill") > 0
    assert facts["under_way"] == [], "a message is left"
    assert facts["processes"] >= 3, "the marks do not work"
    # Ray's last processes need a moment.
    until = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.5)
    assert left == [], "a process is left"
    assert usual("rss", 400, 500) <= 1.05 * usual("rss", 100, 200) + 10
    # Two snapshots refer to updates, and those that came since the older one are there.
    spell = 3 * float(str(SETTINGS["snapshot_every"]))
    for sample in samples:
        recent = sum(sample["time"] - spell <= t <= sample["time"] for t in times)
        assert sample["files"] <= 2 * BUFFER + recent
    model = load_file(folder / "model.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in model.values())
