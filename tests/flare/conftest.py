"""Tests that need nvflare are collected only where it is installed: `make flare`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent

# The scripts of sites run in jobs; importing them would start a site.
collect_ignore = ["fault_job"]
if find_spec("nvflare") is None:
    collect_ignore += [
        str(path.relative_to(HERE))
        for path in HERE.rglob("*.py")
        if path.name != "test_messages.py"
    ]
