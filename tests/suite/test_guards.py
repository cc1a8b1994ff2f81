"""A test that dies or hangs ends the whole run, which names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
ENDS = "tests/suite/ends_its_process.py"
PARALLEL = "@tests/suite/parallel.txt"  # as `make test`
LIMIT = ("-o", "time_limit=3")


def run(*words: str, **environment: str) -> str:
    """What a run of pytest prints that must fail."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_test_that_kills_its_worker_ends_the_run_and_is_named() -> None:
    test = f"{ENDS}::test_that_dies"
    output = run(PARALLEL, test, "tests/suite/takes_long.py")
    assert f"crashed while running '{test}'" in output
    assert f"{test} ended its worker process, so the run stops here" in output
    assert "1 failed in" in output


def test_a_run_fails_if_a_worker_dies_before_its_first_test() -> None:
    assert "node down" in run(PARALLEL, ENDS, DIE_BEFORE_THE_FIRST_TEST="yes")


@pytest.mark.parametrize("how", [(), (PARALLEL,)], ids=["one process", "workers"])
def test_a_test_that_hangs_is_ended_and_named_and_no_process_below_it_survives(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    test = f"{ENDS}::test_that_waits_for_a_child"
    output = run(*how, *LIMIT, test, MARK=str(tmp_path))
    assert f"{test} took longer than 3 s, so its process is ended; it was here:" in output
    assert "in test_that_waits_for_a_child" in output
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if str(tmp_path) in line]


@pytest.mark.parametrize(
    ("test", "place"),
    [
        ("tests.suite.ends_its_process.hangs_in_its_docstring", "<doctest tests.suite.ends_its"),
        ("test_that_never_releases_the_interpreter", "in test_that_never_releases_the_interp"),
    ],
)
def test_the_time_limit_holds_for(test: str, place: str) -> None:
    assert place in run(*LIMIT, f"{ENDS}::{test}")
