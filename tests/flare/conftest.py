"""Tests that need nvflare are collected only where it is installed: `make flare`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("nvflare") is None:
    collect_ignore_glob = ["poc.py", "memory.py", "replay.py", "test_[!m]*.py"]
