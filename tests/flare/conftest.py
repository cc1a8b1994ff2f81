"""Tests that need nvflare are collected only where it is installed: `make flare`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

if find_spec("nvflare") is None:
    here = Path(__file__).parent
    collect_ignore = [
        str(path.relative_to(here))
        for path in here.rglob("*.py")
        if path.name != "test_messages.py"
    ]
