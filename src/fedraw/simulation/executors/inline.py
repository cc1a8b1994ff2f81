"""Executors that train in this process: one client at a time, or several in one call."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from fedraw.core.types import ClientId, Ints
from fedraw.simulation.executors.base import Job, Train, TrainingResult

# Each result must depend on its own job alone, whichever jobs share the call.
TrainTogether = Callable[[Sequence[Job]], Sequence[TrainingResult]]

# Of n equally fast clients, about √(πn/2) can train together; more slots would seldom be filled.
MOST_SLOTS = 64
# Bounds the values in a stack of models: 8 MB still suit a core's cache.
MOST_VALUES = 2**21
# Results per slot that may wait to be collected.
AHEAD = 4


class Inline:
    """Trains a client when its result is collected, so updates that never arrive cost nothing."""

    trains_ahead = False

    def __init__(self, train: Train) -> None:
        self._train = train
        self._jobs: dict[ClientId, Job] = {}

    def submit(self, job: Job) -> None:
        """Remember the job."""
        self._jobs[job.client] = job

    def collect(self, client: ClientId) -> TrainingResult:
        """Train the client now."""
        return self._train(self._jobs.pop(client))


def no_training(examples: Sequence[Ints]) -> Train:
    """Training that returns the model unchanged.

    `examples[epoch]` has every client's number of samples in a data epoch.
    """
    counts = [by_client.tolist() for by_client in examples]
    return lambda job: TrainingResult(job.model, counts[job.epoch][job.position], 1.0)


class Batched:
    """Trains small models together: the client whose result is needed, and those due next.

    All of these clients have been handed their models already, so nothing that happens before they
    arrive can change their results.
    """

    trains_ahead = True

    def __init__(self, train: TrainTogether, slots: int) -> None:
        self._train = train
        self._slots = slots
        self._waiting: list[tuple[float, int, Job]] = []
        self._turn = 0
        self._done: dict[ClientId, TrainingResult] = {}

    def submit(self, job: Job) -> None:
        """Queue the job by the time it is due."""
        heapq.heappush(self._waiting, (job.due, self._turn, job))
        self._turn += 1

    def collect(self, client: ClientId) -> TrainingResult:
        """Return the client's result, and train a batch first if it is not there yet."""
        while client not in self._done and self._waiting:
            self._train_next()
        return self._done.pop(client)

    def _train_next(self) -> None:
        room = max(1, AHEAD * self._slots - len(self._done))
        count = min(room, self._slots, len(self._waiting))
        jobs = [heapq.heappop(self._waiting)[2] for _ in range(count)]
        for job, trained in zip(jobs, self._train(jobs), strict=True):
            self._done[job.client] = trained


def slots_for(size: int) -> int:
    """Return the number of models of this size that are trained together.

    >>> slots_for(4_810), slots_for(101_770), slots_for(10_000_000)
    (64, 20, 1)
    """
    return max(1, min(MOST_SLOTS, MOST_VALUES // max(1, size)))
