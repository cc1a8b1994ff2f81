"""Which job is trained next, and how far ahead of virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.simulation.executor import Job, Trained

# Jobs that may be trained, or wait trained, per worker: enough that none idles, few in memory.
AHEAD = 8


class Place(NamedTuple):
    """A job and where it stands in the queue; the turn settles ties."""

    due: float
    turn: int
    job: Job


class Schedule:
    """Jobs wait here for a worker, those first that are due first, and results for their time.

    >>> import numpy as np
    >>> schedule = Schedule(workers=1)
    >>> for client, due in [("late", 9.0), ("early", 1.0)]:
    ...     schedule.add(Job(client, 0, 0, np.zeros(1, np.float32), due))
    >>> schedule.next(busy=0).job.client
    'early'
    >>> schedule.next(busy=8) is None, schedule.next(busy=8, urgent="late").job.client
    (True, 'late')
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BadInput(f"{workers} workers cannot train; use at least 1")
        self.done: dict[ClientId, Trained] = {}
        self._most = AHEAD * workers
        self._waiting: list[Place] = []
        self._turn = 0

    def add(self, job: Job) -> None:
        heapq.heappush(self._waiting, Place(job.due, self._turn, job))
        self._turn += 1

    def put_back(self, place: Place) -> None:
        """What was lost on its way stands where it stood."""
        heapq.heappush(self._waiting, place)

    def collect(
        self,
        client: ClientId,
        assign: Callable[[ClientId | None], None],
        receive: Callable[[], None],
    ) -> Trained:
        """The client's result, for which `assign` hands out jobs and `receive` awaits answers."""
        while client not in self.done:
            assign(client)
            receive()
        result = self.done.pop(client)
        assign(None)
        return result

    def next(self, busy: int, urgent: ClientId | None = None) -> Place | None:
        """What is due next, while `busy` others train; an urgent job goes before all bounds."""
        full = len(self.done) + busy >= self._most
        if not self._waiting or (full and self._waiting[0].job.client != urgent):
            return None
        return heapq.heappop(self._waiting)
