"""Measures every method's cost on the server: memory in models, time of an arrival in copies.

Of the N clients, 6 hold rare labels, two clients each (as in the paper's EMNIST setting). The
clients arrive in random order, each once in a turn, so that synchronous methods can take part.
Methods have their default buffer.

Memory is that of the largest state after an arrival in the second turn, at two small model sizes.
The difference is the part that grows with the model, so that methods can be measured whose state
would not fit into memory. A model has 4 bytes per parameter; a running sum in float64 counts as two
models. State that simulated clients keep is not counted.

Time is the mean over a turn of N = 30 clients, because some methods work at every arrival and
others at every tenth. It is processor time, and one copy is `np.copyto` into warm memory. Clients
share four vectors.

Run: make bench, or python -m benchmarks.method_cost [--parameters 11200000] [METHOD ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from benchmarks.machine import headline

from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.storage.snapshot import nbytes
from fedraw.strategies.catalog import CATALOG, find_method
from fedraw.strategies.protocol import Arrived, Setup

PARAMETERS = 11_200_000  # a ResNet-18
FEW = 2_000
CLIENTS = (30, 1_000)
RARE = 6
TURNS = 1


class Server:
    """A server with one method and the clients of this benchmark."""

    def __init__(self, name: str, clients: int, size: int) -> None:
        common = {f"label {k}": 10 for k in range(20)}
        rare = {client: {f"rare {client // 2}": 100} for client in range(RARE)}
        table = LabelTable.from_counts({c: common | rare.get(c, {}) for c in range(clients)})
        self._method = CATALOG[name].make()
        setup = Setup(np.zeros(size, np.float32), table, local_lr=0.1)
        self.state, _ = self._method.start(setup)

    def arrive(self, client: int, vector: Vector) -> None:
        """Take one step with an update of this client."""
        update = Update(client, self.state.version, vector, 10, loss=1.0)
        self.state, _ = self._method.step(self.state, Arrived(update))


def state_size(name: str, clients: int, size: int) -> int:
    """Return the largest size of the state in the second turn; updates share no memory."""
    rng = np.random.default_rng(0)
    server = Server(name, clients, size)
    sizes = []
    for client in [*rng.permutation(clients).tolist(), *rng.permutation(clients).tolist()]:
        server.arrive(client, rng.normal(size=size).astype(np.float32))
        sizes.append(nbytes(server.state))
    return max(sizes[clients:])


def models_kept(name: str, clients: int) -> float:
    """Return the size of the state that grows with the model, in models."""
    grown = state_size(name, clients, 2 * FEW) - state_size(name, clients, FEW)
    return grown / (4 * FEW)


def copies_per_arrival(name: str, clients: int, vectors: Sequence[Vector]) -> float:
    """Return the mean time of an arrival over the median time of a copy; both alternate."""
    rng = np.random.default_rng(0)
    server = Server(name, clients, vectors[0].size)
    target = vectors[0].copy()
    copies, arrivals = [], []
    for turn in range(1 + TURNS):
        for client in rng.permutation(clients).tolist():
            vector = vectors[client % len(vectors)]
            start = time.thread_time()
            np.copyto(target, vector)
            copied = time.thread_time()
            server.arrive(client, vector)
            if turn:  # the first turn fills the state
                copies.append(copied - start)
                arrivals.append(time.thread_time() - copied)
    return fmean(arrivals) / median(copies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RawText)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    options = parser.parse_args()
    every = [name for name, method in CATALOG.items() if not method.is_ablation]
    names = [find_method(name, "METHOD").name for name in options.methods] or every
    rng = np.random.default_rng(1)
    size = options.parameters
    vectors = [rng.normal(scale=0.01, size=size).astype(np.float32) for _ in range(4)]
    print(headline())
    few, many = CLIENTS
    print(f"{size:,} parameters; copies at N = {few}")
    print(f"{'method':16} {f'models, N = {few}':>15} {f'N = {many:,}':>10} {'copies':>7}")
    for name in names:
        kept = [models_kept(name, clients) for clients in CLIENTS]
        copies = copies_per_arrival(name, few, vectors)
        print(f"{name:16} {kept[0]:15.1f} {kept[1]:10.1f} {copies:7.1f}", flush=True)


RawText = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
