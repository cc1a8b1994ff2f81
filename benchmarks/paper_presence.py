"""Computes the paper's buffer presence from closed forms: speeds are drawn, arrivals are not.

    python -m benchmarks.paper_presence

The speeds are those of seeds 1 to 30 of `fedraw reproduce dynamics`, whose simulated figures are in
docs/research/dynamics.md.
"""

from __future__ import annotations

import numpy as np
from benchmarks.machine import headline, mean_and_spread

from fedraw.auditing.methods import Buffer
from fedraw.auditing.presence import arrival_shares, group_presence
from fedraw.core.randomness import Streams
from fedraw.simulation.speeds import Speeds, mean_seconds

SETTINGS: list[tuple[str, int, float | None, str]] = [
    ("EMNIST, 6 rare clients", 6, None, "60.2 / 72.7"),
    ("HAM10000, 4 rare clients", 4, None, "46.4 / 59.0"),
    ("EMNIST, 10x", 6, 10.0, "23.8 / 33.8"),
    ("EMNIST, 20x", 6, 20.0, "11.6 / 17.9"),
    ("1 holder of each of 3 rare labels", 3, None, "FedRAW 45.05"),
    ("2 holders", 6, None, "FedRAW 76.73"),
    ("3 holders", 9, None, "FedRAW 90.33"),
    ("5 holders", 15, None, "FedRAW 99.48"),
    ("7 holders", 21, None, "FedRAW 100.00"),
]


def present(rare: int, ratio: float | None, buffer: Buffer, seed: int) -> float:
    """Return the probability in percent that a buffer of 10 has a rare client, of 30 clients."""
    kind: Speeds = "correlated" if ratio is None else "ratio"
    rng = Streams(seed).generator("speeds")
    seconds = mean_seconds(kind, 30, range(rare), rng, ratio or 1.0)
    return 100 * group_presence(arrival_shares(seconds), np.arange(30) < rare, 10, buffer)


def main() -> None:
    print(headline())
    print(f"{'':42} {'FedFa':>12} {'FedRAW':>12}   paper")
    for name, rare, ratio, paper in SETTINGS:
        cells = []
        for buffer in ("window", "dedup"):
            found = [present(rare, ratio, buffer, seed) for seed in range(1, 31)]
            cells.append(mean_and_spread(found))
        print(f"{name:42} {cells[0]:>12} {cells[1]:>12}   {paper}")


if __name__ == "__main__":
    main()
