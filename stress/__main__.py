"""Runs all stress tests, two at a time, and prints one table of their counts.

Run: make stress
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stress.outcomes import table

# The longest parts first, with their default numbers of trials.
PARTS = {
    "inputs": 2000,
    "corruptions": 1000,
    "simulator_kills": 500,
    "server_kills": 500,
    "sums_kills": 500,
    "clocks": 120,
}


def run_part(name: str, trials: int, seed: int, folder: Path) -> tuple[bool, dict[str, Any]]:
    """Run one part in its own process; return whether it passed, and its counts."""
    counts = folder / f"{name}.json"
    words = [f"--trials={trials}", f"--seed={seed}", f"--counts={counts}"]
    command = [sys.executable, "-m", f"stress.{name}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr, flush=True)
    found = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {name: {}}
    return done.returncode == 0, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="share of the default trials")
    parser.add_argument("--jobs", type=int, default=2, help="number of parts that run at a time")
    given = parser.parse_args()
    begun = time.monotonic()
    counts: dict[str, Any] = {}
    passed = True
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        jobs = {
            name: pool.submit(
                run_part, name, max(1, round(given.share * trials)), given.seed, Path(folder)
            )
            for name, trials in PARTS.items()
        }
        for job in jobs.values():
            fine, found = job.result()
            passed = passed and fine
            counts |= found
    print(table(counts))
    minutes = (time.monotonic() - begun) / 60
    print(f"seed {given.seed}, {minutes:.1f} minutes: {'nothing' if passed else 'something'} wrong")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
