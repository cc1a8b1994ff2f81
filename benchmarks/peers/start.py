"""Runs a script of this folder from anywhere: `PYTHON benchmarks/peers/start.py run_NAME ...`.

`python -m benchmarks.peers.run_NAME` would not work in environments with another package
`benchmarks`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path[0] = str(ROOT)  # replaces this folder
    ours = ModuleType("benchmarks")
    ours.__path__ = [str(ROOT / "benchmarks")]
    sys.modules["benchmarks"] = ours
    _, name, *rest = sys.argv
    sys.argv = [name, *rest]
    runpy.run_module(f"benchmarks.peers.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
