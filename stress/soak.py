"""A long life with random deaths: memory stays flat, and the folder stays bounded.

A federation of 30 sites runs until it has accepted the given number of updates. The server dies
about every 50 arrivals and continues from its folder. Sites die and return. After every tenth of
the arrivals this part measures the memory of the process, the folder without its log, and the log.
At the end it verifies the folder.

Run: python -m stress.soak --arrivals 5000 --seed 1
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import numpy as np
from tests.server.engine import Engine

from fedraw.core.layout import Layout
from fedraw.eventlog.log_file import LOG, log_size
from fedraw.server.verification import verify_folder
from fedraw.strategies.fedraw import FedRAW
from stress.outcomes import scratch

SITES, BUFFER, SIZE = 30, 10, 20_000
# The mean number of arrivals between two deaths of the process, and of a site.
SERVER_DIES, SITE_DIES = 50, 20
MOST_AWAY = 8


def resident() -> float:
    """Return the memory of this process in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def folder_megabytes(folder: Path) -> float:
    """Return the size of the folder without its log, in MB."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return (sum(sizes) - log_size(folder / LOG)) / 1e6


def soak(folder: Path, arrivals: int, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    sites = {f"site {i}": {"common": 90, f"own {i % 7}": 10} for i in range(SITES)}
    engine = Engine(
        folder,
        FedRAW(buffer=BUFFER),
        sites,
        layout=Layout.of([("w", (SIZE,))]),
        min_clients=SITES,
        arrivals=arrivals,
        snapshot_every=5.0,
        absence=10.0,
    )
    deaths = away = 0
    due = arrivals // 10
    print("arrivals  deaths sites died   memory   folder      log")
    while engine.coordinator.finished is None:
        before = engine.coordinator.accepted
        engine.now += 0.5
        engine.turn()
        engine.sent.clear()
        new = engine.coordinator.accepted - before
        if rng.random() < new / SITE_DIES:
            gone = set(rng.choice(list(sites), int(rng.integers(1, MOST_AWAY)), replace=False))
            engine.online = set(sites) - gone
            away += len(gone)
        if rng.random() < new / SERVER_DIES:
            engine.restart(away=float(rng.exponential(20)))
            gc.collect()  # a dead process frees its memory
            deaths += 1
        if engine.coordinator.accepted >= due:
            due += arrivals // 10
            log = log_size(folder / LOG) / 1e6
            print(
                f"{engine.coordinator.accepted:8,} {deaths:7} {away:10} {resident():5.0f} MB "
                f"{folder_megabytes(folder):5.1f} MB {log:5.2f} MB",
                flush=True,
            )
    engine.coordinator.close(engine.now)
    checks = verify_folder(folder)
    print("verified: " + ", ".join(f"{check.count:,} {check.name}" for check in checks))
    for check in checks:
        for problem in check.problems:
            print(f"WRONG: {problem}")
    return not any(check.problems for check in checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arrivals", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    with scratch() as root:
        good = soak(root / "federation", options.arrivals, options.seed)
    print(f"{time.monotonic() - begun:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
