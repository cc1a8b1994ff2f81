"""The example's job as an operator runs it: in FLARE's simulator, and in POC mode with mTLS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.flare.poc import Poc
from tests.flare.replay import final_model, records, replayed

from fedraw.flare.messages import read_strategy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),  # FLARE's
]

JOB = Path(__file__).parents[2] / "examples" / "flare-job" / "job.py"
SITES = ("north", "south", "east", "west")
STRATEGIES = ("fedraw", "fedfa")


def job(*words: object) -> None:
    command = [sys.executable, str(JOB), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def check_bit_for_bit(folder: Path, name: str) -> None:
    """The model equals that of the strategy alone, with the same order of arrivals."""
    again = replayed(folder, read_strategy({"name": name, "buffer": 4}))
    model = final_model(folder)
    assert model.keys() == again.keys()
    for tensor, numbers in model.items():
        np.testing.assert_array_equal(numbers, again[tensor])


def row(folder: Path, name: str) -> tuple[Any, ...]:
    evaluations = [record["metrics"] for record in records(folder, "evaluation")][-5:]
    means = [sum(m[key] for m in evaluations) / 5 for key in ("GlobalAcc", "AvgRare")]
    arrivals = records(folder, "arrival")
    west = sum(record["client"] == "west" for record in arrivals)
    return name, *means, west, len(arrivals)


def check_rows(where: str, rows: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{where}; {os.cpu_count()} cores; mean of the last five evaluations")
        for name, accuracy, rare, west, arrivals in rows:
            print(f"| {name} | {accuracy:.1f} | {rare:.1f} | {west} of {arrivals} from west |")
    assert rows[0][2] >= rows[1][2] + 30


def test_in_the_simulator_fedraw_keeps_the_slow_sites_labels_and_fedfa_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for name in STRATEGIES:
        folder = tmp_path / name
        job("sim", "--folder", folder, "--strategy", name, "--workspace", tmp_path / f"sim-{name}")
        assert records(folder)[-1]["kind"] == "end"
        check_bit_for_bit(folder, name)
        rows.append(row(folder, name))
    check_rows("simulator", rows, capsys)


def test_in_poc_mode_fedraw_keeps_the_slow_sites_labels_and_fedfa_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    with Poc(tmp_path, SITES) as poc:
        for name in STRATEGIES:
            job("export", tmp_path / "job" / name, "--folder", name, "--strategy", name)
            number = poc.submit(tmp_path / "job" / name / "rarelabels")
            assert poc.wait(number, 1500) == "FINISHED:COMPLETED", poc.logs()
            folder = poc.workspace / name
            assert records(folder)[-1]["kind"] == "end"
            check_bit_for_bit(folder, name)
            rows.append(row(folder, name))
    check_rows("POC", rows, capsys)
