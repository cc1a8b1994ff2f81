"""What a method costs the server: memory in models, time an arrival in copies of the model.

N clients, of which 6 hold a rare label each with one other (as in the paper's EMNIST setting), all
equally fast, K = 10. Memory is what the state's arrays take once everyone was heard twice: counted
with a smaller model, so that methods can be counted that would not fit. Time is the mean over
arrivals, since some methods work at every arrival and others at every tenth, of a full state, with
a ResNet-18's 11.2 million parameters; one copy is `vector.copy()`. Clients share twelve vectors:
CA2FL's cache for N = 1,000 (45 GB) would not fit otherwise.

Run: make bench, or python -m benchmarks.server_cost
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from benchmarks.machine import headline

from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.storage.snapshot import nbytes
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Setup

PARAMETERS = 11_200_000
FEW = 500_000  # enough for the label table to vanish beside it
CLIENTS = (30, 1_000)
METHODS = ("fedfa", "fedbuff", "ca2fl", "fedraw", "fedraw-replay")
BUFFER, RARE = 10, 6
ARRIVALS = 60


class Server:
    """A method with a model, fed by clients in random order."""

    def __init__(self, name: str, clients: int, vectors: Sequence[Vector]) -> None:
        common = {f"label {k}": 10 for k in range(20)}
        rare = {client: {f"rare {client // 2}": 100} for client in range(RARE)}
        table = LabelTable.from_counts({c: common | rare.get(c, {}) for c in range(clients)})
        self._method = CATALOG[name].make({"buffer": BUFFER})
        self.state, _ = self._method.start(Setup(np.zeros_like(vectors[0]), table))
        self._vectors = vectors
        self._rng = np.random.default_rng(0)
        self._clients = clients

    def arrive(self, client: int | None = None) -> None:
        if client is None:
            client = int(self._rng.integers(self._clients))
        vector = self._vectors[int(self._rng.integers(len(self._vectors)))]
        update = Update(client, self.state.version, vector, 10)
        self.state, _ = self._method.step(self.state, Arrived(update))

    def fill(self) -> None:
        for client in [*range(self._clients), *range(self._clients)]:
            self.arrive(client)


def models_kept(name: str, clients: int) -> float:
    """Every update has memory of its own here."""
    server = Server(name, clients, [np.zeros(FEW, np.float32)])
    for client in [*range(clients), *range(clients)]:
        server._vectors = [np.ones(FEW, np.float32)]
        server.arrive(client)
    return nbytes(server.state) / int(server.state.model.nbytes)


def seconds_an_arrival(clients: int, vectors: Sequence[Vector]) -> tuple[float, dict[str, float]]:
    """The methods take turns, so that a busy moment of the machine hits all alike."""
    servers = {name: Server(name, clients, vectors) for name in METHODS}
    for server in servers.values():
        server.fill()
    copies, times = [], {name: [] for name in METHODS}  # type: ignore[var-annotated]
    for _ in range(ARRIVALS):
        begun = time.perf_counter()
        vectors[0].copy()
        copies.append(time.perf_counter() - begun)
        for name, server in servers.items():
            begun = time.perf_counter()
            server.arrive()
            times[name].append(time.perf_counter() - begun)
    return median(copies), {name: fmean(own) for name, own in times.items()}


def main() -> None:
    print(headline())
    rng = np.random.default_rng(1)
    vectors = [rng.normal(scale=0.01, size=PARAMETERS).astype(np.float32) for _ in range(12)]
    print(f"K = {BUFFER}, {RARE} rare clients, {PARAMETERS:,} parameters")
    print(f"{'':14} {'N':>6} {'models kept':>12} {'GB':>6} {'copies':>8} {'ms':>7}")
    for clients in CLIENTS:
        copy, seconds = seconds_an_arrival(clients, vectors)
        for name in METHODS:
            kept = models_kept(name, clients)
            size = kept * PARAMETERS * 4 / 1e9
            spent = seconds[name]
            row = f"{name:14} {clients:6,} {kept:12.1f} {size:6.2f} {spent / copy:8.1f}"
            print(f"{row} {spent * 1e3:7.1f}")


if __name__ == "__main__":
    main()
