"""What this machine's processor really allows, tried in a child process, which may die of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

import pytest

BFLOAT16 = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = torch.nn.Linear(64, 64)(torch.ones(64, 64)).sum()
torch.autograd.backward(loss)
"""


def skip_if_bfloat16_kills() -> None:
    """Skip the test where autocast to bfloat16 dies from a signal."""
    skip_if_killed(BFLOAT16)


def skip_if_killed(code: str) -> None:
    number = _exit_code(code)
    if number < 0:
        name = signal.Signals(-number).name
        pytest.skip(f"on this processor a child process that tried it died from {name}")
    assert number == 0, f"exit code {number} of:\n{code}"


@cache
def _exit_code(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode
