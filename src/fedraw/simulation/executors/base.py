"""The executor interface, the jobs that executors train, and the queue of jobs for workers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput

# Jobs per worker that may be in training or wait trained: enough that no worker idles, and few
# enough models in memory.
AHEAD = 8


# What a client keeps from one training to the next: named arrays.
ClientState = Mapping[str, npt.NDArray[Any]]


class Job(NamedTuple):
    """One training of one client, from the model that the client was handed.

    `position` is the client's number in the label table. `training` counts the client's trainings
    from 0. `due` is the virtual time of the arrival. `epoch` is the client's data epoch: 0 at
    first, and one more after each change of the clients' data. `version` and `event` say when the
    client was handed the model. `state` is what the client's own training function keeps.
    """

    client: ClientId
    position: int
    training: int
    model: Vector
    due: float
    epoch: int = 0
    version: int = 0
    event: int = 0
    state: ClientState | None = None


class TrainingResult(NamedTuple):
    """The result of a job.

    `loss` is the mean loss at the start model, if the strategy needs it. `metrics` go to the log.
    `state` is what the client keeps until its next training.
    """

    vector: Vector
    examples: int
    loss: float | None = None
    metrics: Mapping[str, float | None] | None = None
    state: ClientState | None = None


# The result must depend on the job alone, so that it is the same wherever and whenever it runs.
Train = Callable[[Job], TrainingResult]


class Executor(Protocol):
    """Trains clients. A client has at most one job in flight."""

    @property
    def trains_ahead(self) -> bool:
        """Whether jobs are trained before they are collected.

        If so, they are submitted when the model is handed out, and else right before `collect`.
        """
        ...

    def submit(self, job: Job) -> None:
        """Accept a job."""
        ...

    def collect(self, client: ClientId) -> TrainingResult:
        """Return the result of the client's job when virtual time reaches the arrival."""
        ...


class QueuedJob(NamedTuple):
    """A job and its place in the queue; the turn settles ties."""

    due: float
    turn: int
    job: Job


class JobQueue:
    """Holds jobs that wait for a worker, earliest due first, and results that wait to be collected.

    >>> import numpy as np
    >>> queue = JobQueue(workers=1)
    >>> for client, due in [("late", 9.0), ("early", 1.0)]:
    ...     queue.add(Job(client, 0, 0, np.zeros(1, np.float32), due))
    >>> queue.next(busy=0).job.client
    'early'
    >>> queue.next(busy=8) is None, queue.next(busy=8, urgent="late").job.client
    (True, 'late')
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BadInput(f"{workers} workers cannot train; use at least 1")
        self.done: dict[ClientId, TrainingResult] = {}
        self._most = AHEAD * workers
        self._waiting: list[QueuedJob] = []
        self._turn = 0

    def add(self, job: Job) -> None:
        """Append a new job."""
        heapq.heappush(self._waiting, QueuedJob(job.due, self._turn, job))
        self._turn += 1

    def put_back(self, queued: QueuedJob) -> None:
        """Return a job that its worker has lost to its old place."""
        heapq.heappush(self._waiting, queued)

    def collect(
        self,
        client: ClientId,
        assign: Callable[[ClientId | None], None],
        receive: Callable[[], None],
    ) -> TrainingResult:
        """Wait for the client's result: `assign` gives jobs to workers, `receive` takes answers."""
        while client not in self.done:
            assign(client)
            receive()
        result = self.done.pop(client)
        assign(None)
        return result

    def next(self, busy: int, urgent: ClientId | None = None) -> QueuedJob | None:
        """Take the job that is due next, while `busy` others train.

        None if no job waits, or if enough are ahead. That limit does not hold for the urgent
        client's job.
        """
        full = len(self.done) + busy >= self._most
        if not self._waiting or (full and self._waiting[0].job.client != urgent):
            return None
        return heapq.heappop(self._waiting)
