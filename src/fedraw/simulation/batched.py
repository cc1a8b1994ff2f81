"""The executor for small models: clients in flight are trained together, in one call."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from fedraw.core.types import ClientId
from fedraw.simulation.executor import Job, Trained

# Each result must depend on nothing but its job: then who shares a call cannot change it.
TrainTogether = Callable[[Sequence[Job]], Sequence[Trained]]

# Of n equally quick clients about √(πn/2) can train together; more than this is seldom there.
MOST_SLOTS = 64
# Bounds what a stack holds: 8 MB of models, which a core's cache still likes.
MOST_VALUES = 2**21
# Results that may wait to be collected, per slot.
AHEAD = 4


def slots_for(size: int) -> int:
    """How many models of this size are trained together.

    >>> slots_for(4_810), slots_for(101_770), slots_for(10_000_000)
    (64, 20, 1)
    """
    return max(1, min(MOST_SLOTS, MOST_VALUES // max(1, size)))


class Batched:
    """Trains when a result is asked for that is not there: this one, and those due next.

    All of these have been handed their models, so nothing that happens until they arrive can
    change what they come to.
    """

    def __init__(self, train: TrainTogether, slots: int) -> None:
        self._train = train
        self._slots = slots
        self._waiting: list[tuple[float, int, Job]] = []
        self._turn = 0
        self._done: dict[ClientId, Trained] = {}

    def submit(self, job: Job) -> None:
        heapq.heappush(self._waiting, (job.due, self._turn, job))
        self._turn += 1

    def collect(self, client: ClientId) -> Trained:
        while client not in self._done and self._waiting:
            self._train_next()
        return self._done.pop(client)

    def _train_next(self) -> None:
        room = max(1, AHEAD * self._slots - len(self._done))
        count = min(room, self._slots, len(self._waiting))
        jobs = [heapq.heappop(self._waiting)[2] for _ in range(count)]
        for job, trained in zip(jobs, self._train(jobs), strict=True):
            self._done[job.client] = trained
