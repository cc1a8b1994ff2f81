"""Tests that never end, or end their process: `test_guards.py` runs each in a run of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

if "DIE_BEFORE_THE_FIRST_TEST" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)

BELOW = """
import subprocess, sys
sleep = "import time; time.sleep(1000)"
grandchild = subprocess.Popen([sys.executable, "-c", sleep, *sys.argv[1:]])
print(flush=True)
grandchild.wait()
"""


def test_that_dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_that_waits_for_a_child() -> None:
    command = [sys.executable, "-c", BELOW, os.environ["MARK"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


def test_that_never_releases_the_interpreter() -> None:
    re.match("(a+)+$", 100 * "a" + "b")


def hangs_in_its_docstring() -> None:
    """Show a doctest without an end.

    >>> time.sleep(1000)
    """
    time.sleep(0)
