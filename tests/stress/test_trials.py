"""Each part of the stress trials, with very few of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stress.forked import Kill, Send, run_forked
from stress.outcomes import Outcome, Result, Tally, table, wrong

ROOT = Path(__file__).parents[2]


def stress(*words: str) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_server_kills() -> None:
    assert "identical" in stress("stress.server_kills", "--trials", "3")


def test_fifty_kills_of_servers_that_add_up_sums_leave_one_digest() -> None:
    said = stress("stress.sums_kills", "--trials", "50")
    assert re.search(r"every server has the totals [0-9a-f]{64}\n", said), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "trials"),
    [("simulator_kills", 6), ("corruptions", 24), ("inputs", 20), ("clocks", 9)],
)
def test_nothing_goes_wrong_in_a_few_trials(part: str, trials: int) -> None:
    assert part in stress(f"stress.{part}", "--trials", str(trials))


@pytest.mark.slow
def test_a_few_mutants_are_tried() -> None:
    command = [sys.executable, "-m", "stress.mutate", "--file", "metrics/fairness.py"]
    done = subprocess.run(
        [*command, "--package", "metrics", "--sample", "2"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 mutants (2 of metrics)" in done.stdout, done.stdout + done.stderr


def write(path: Path, lines: int) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(lines):
            file.write(b"0123456789\n")


def test_a_child_is_killed_where_it_was_told_to_be(tmp_path: Path) -> None:
    def work(send: Send) -> int:
        send(b"begun")
        write(tmp_path / "lines", 5)
        return 3

    ended = run_forked(work, count_calls=True)
    assert (ended.code, ended.sent, ended.was_killed) == (3, b"begun", False)
    # To open the file, and five writes, each with its beginning and its end.
    assert ended.calls == 12
    ended = run_forked(work, Kill("call", 6))
    assert (ended.signal, ended.was_killed) == (signal.SIGKILL, True)
    assert (tmp_path / "lines").read_bytes() == b"0123456789\n" * 2
    ended = run_forked(work, Kill("torn", 25))
    assert ended.was_killed
    assert (tmp_path / "lines").read_bytes() == (b"0123456789\n" * 3)[:25]
    ended = run_forked(lambda send: signal.pause(), Kill("moment", 0.05))
    assert ended.signal == signal.SIGKILL and not ended.hung


def test_a_child_that_raises_or_hangs_is_told_from_one_that_ends() -> None:
    def work(send: Send) -> None:
        raise RuntimeError("no way")

    assert "RuntimeError: no way" in run_forked(work).problem
    assert run_forked(lambda send: signal.pause(), wall_seconds=0.05).hung
    assert run_forked(lambda send: print(os.getpid())).printed.strip().isdecimal()


def test_only_wrong_outcomes_fail_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally("part", seed=7)
    tally.add(0, Result("a", Outcome.IDENTICAL))
    tally.add(1, Result("a", Outcome.CLEAR_ERROR))
    assert tally.wrong == 0
    tally.add(2, wrong("b", "lost an update"))
    assert tally.wrong == 1
    assert capsys.readouterr().out.splitlines() == [
        "WRONG part --seed 7 --only 2 (b)",
        "    lost an update",
    ]
    rows = [line.split() for line in table({"part": tally.counts}).splitlines()[2:]]
    assert rows == [
        ["part", "a", "2", "1", "0", "1", "0"],
        ["part", "b", "1", "0", "0", "0", "1"],
        ["part", "all", "3", "1", "0", "1", "1"],
    ]
