"""The command in a process of its own, and a small spec to give it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SMALL = """
version = 1
[partition]
clients = 8
rare_labels = [9]
clients_per_common_label = 5
[strategy]
name = "fedraw"
buffer = 4
[training]
epochs = 1
[run]
events = 30
evaluate_every = 10
seeds = [1, 2]
"""


def fedraw(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedraw", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )
