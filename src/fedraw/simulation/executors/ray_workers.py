"""The executor that trains on the nodes of a Ray cluster.

Data and models lie in Ray's object store, once each. A result depends on its job alone, so the
event log is byte for byte that of the inline executor, and a job whose worker or node died is
trained again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput, WorkerDied
from fedraw.simulation.executors.base import Job, JobQueue, QueuedJob, Train, TrainingResult
from fedraw.simulation.executors.ray_cluster import import_ray
from fedraw.simulation.executors.workers import cannot_load

# A worker trains one job while the model of the next is on its way.
JOBS_PER_WORKER = 2
# Models of at most this many bytes travel with their jobs, which is faster than storing them.
SENT_ALONG = 65536
# How often a job may lose its worker, and how many workers in a row may fail to start.
ATTEMPTS = 4
# Seconds for the first worker: a node may have to start, and torch may lie on a slow disk.
STARTS_WITHIN = 300.0
# Stands for the model of a job, which travels beside it.
BESIDE: Vector = np.empty(0, np.float32)


class TrainingWorker:
    """The Ray actor: it lives in a process of the cluster and makes its trainer once."""

    def __init__(self, name: str, recipe: list[Any]) -> None:
        self._name = name
        self._recipe = recipe
        self._train: Train | None = None

    def prepare(self) -> None:
        """Make the trainer. Ray would report an error in the constructor as a dead actor."""
        ray = import_ray()
        try:
            make_train: Callable[[], Train] = ray.get(self._recipe[0])
        except ray.exceptions.RaySystemError as problem:
            cause = problem.client_exc
            if isinstance(cause, Exception):  # raised while the recipe was unpickled
                raise cannot_load(self._name, cause) from None
            raise
        self._train = make_train()

    def train(self, job: Job, model: Vector) -> TrainingResult:
        """Train the job from this model."""
        assert self._train is not None
        return self._train(job._replace(model=model))


@dataclass(eq=False)
class _Worker:
    actor: Any
    jobs: int = 0
    ready: bool = False


@dataclass
class _Version:
    model: Vector  # kept alive, so that no other array can get its id
    jobs: int = 0
    stored: Any = None


class StoredModels:
    """Versions of the global model in Ray's object store, each once while a job starts from it.

    >>> import numpy as np
    >>> model, puts = np.zeros(2, np.float32), []
    >>> models = StoredModels(put=lambda array: puts.append(array) or len(puts))
    >>> models.expect(model); models.expect(model)
    >>> models.stored(model), models.stored(model), len(puts)
    (1, 1, 1)
    >>> models.release(model); len(models), models.release(model), len(models)
    (1, None, 0)
    """

    def __init__(self, put: Callable[[Vector], Any]) -> None:
        self._put = put
        self._versions: dict[int, _Version] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def expect(self, model: Vector) -> None:
        """Note that one more job will start from this model."""
        self._versions.setdefault(id(model), _Version(model)).jobs += 1

    def stored(self, model: Vector) -> Any:
        """Return the reference of the stored model; it is stored on the first call."""
        version = self._versions[id(model)]
        if version.stored is None:
            version.stored = self._put(model)
        return version.stored

    def release(self, model: Vector) -> None:
        """Note that a job is done; after the last one, Ray frees the copy."""
        version = self._versions[id(model)]
        version.jobs -= 1
        if not version.jobs:
            del self._versions[id(model)]


class RayWorkers:
    """Trains in `workers` processes of the cluster that this process is connected to."""

    trains_ahead = True

    def __init__(self, make_train: Callable[[], Train], workers: int) -> None:
        self._ray = ray = import_ray()
        self._queue = JobQueue(workers)
        self._models = StoredModels(self._put_model)
        self._name = str(make_train)
        self._recipe = self._stored(make_train)
        self._actor_class = ray.remote(num_cpus=1)(TrainingWorker)
        self._workers: list[_Worker] = []
        # Pending answers: the worker and its job, or None while the worker gets ready.
        self._asked: dict[Any, tuple[_Worker, QueuedJob | None]] = {}
        self._lost: dict[ClientId, int] = {}
        self._failed_starts = 0
        for _ in range(workers):
            self._start_worker()

    def submit(self, job: Job) -> None:
        """Queue the job, and give it to a worker if one is free."""
        self._models.expect(job.model)
        self._queue.add(job)
        self._assign()

    def collect(self, client: ClientId) -> TrainingResult:
        """Wait until the client's result is there."""
        return self._queue.collect(client, self._assign, self._receive)

    def close(self) -> None:
        """End all workers. Nobody collects the results of jobs that still train."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()
        self._asked.clear()

    def _put_model(self, model: Vector) -> Any:
        return model if model.nbytes <= SENT_ALONG else self._ray.put(model)

    def _stored(self, make_train: Callable[[], Train]) -> Any:
        try:
            return self._ray.put(make_train)
        except TypeError as problem:
            reason = str(problem).strip().splitlines()[0]
            raise BadInput(
                f"the ray executor cannot send this to a worker: {reason}; define models at the "
                "top level of a module, or use the inline executor"
            ) from None

    def _start_worker(self) -> None:
        # Inside a list, Ray passes the reference itself.
        worker = _Worker(self._actor_class.remote(self._name, [self._recipe]))
        self._workers.append(worker)
        self._asked[worker.actor.prepare.remote()] = (worker, None)

    def _assign(self, urgent: ClientId | None = None) -> None:
        """Give the jobs that are due next to workers, the least busy first."""
        while free := [w for w in self._workers if w.ready and w.jobs < JOBS_PER_WORKER]:
            queued = self._queue.next(sum(w.jobs for w in self._workers), urgent)
            if queued is None:
                return
            self._ask(min(free, key=lambda worker: worker.jobs), queued)

    def _ask(self, worker: _Worker, queued: QueuedJob) -> None:
        model = self._models.stored(queued.job.model)
        answer = worker.actor.train.remote(queued.job._replace(model=BESIDE), model)
        self._asked[answer] = (worker, queued)
        worker.jobs += 1

    def _receive(self) -> None:
        """Wait for at least one answer."""
        asked = list(self._asked)
        answers, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)
        for answer in answers or self._first_of(asked):
            if answer in self._asked:  # its worker may just have been found dead
                self._take(answer)

    def _first_of(self, asked: list[Any]) -> list[Any]:
        patience = None if any(worker.ready for worker in self._workers) else STARTS_WITHIN
        answers: list[Any] = self._ray.wait(asked, timeout=patience)[0]
        if not answers:
            raise WorkerDied(
                f"no worker of the Ray cluster has started within {patience:g} s; "
                "has it a free CPU? see `ray status`"
            )
        return answers

    def _take(self, answer: Any) -> None:
        worker, queued = self._asked[answer]
        errors = self._ray.exceptions
        try:
            result = self._ray.get(answer)
        except errors.RayTaskError as problem:
            if not isinstance(problem.cause, errors.RayError):
                raise problem.cause from problem  # training would fail the same way anywhere
            self._replace(worker, problem)
        except errors.RayError as problem:
            self._replace(worker, problem)
        else:
            del self._asked[answer]
            self._note(worker, queued, result)

    def _note(self, worker: _Worker, queued: QueuedJob | None, result: TrainingResult) -> None:
        if queued is None:
            worker.ready, self._failed_starts = True, 0
            return
        worker.jobs -= 1
        client = queued.job.client
        self._lost.pop(client, None)
        self._models.release(queued.job.model)
        # Copies, because Ray frees an object only when no array looks at it.
        state = result.state and {key: np.array(value) for key, value in result.state.items()}
        self._queue.done[client] = result._replace(vector=np.array(result.vector), state=state)

    def _replace(self, worker: _Worker, problem: Exception) -> None:
        """Replace a dead worker, and return its jobs to the queue."""
        its = {answer: queued for answer, (who, queued) in self._asked.items() if who is worker}
        for answer, queued in its.items():
            del self._asked[answer]
            self._put_back(queued, problem)
        self._workers.remove(worker)
        self._ray.kill(worker.actor)  # it may only be out of reach, and must not come back
        self._start_worker()

    def _put_back(self, queued: QueuedJob | None, problem: Exception) -> None:
        if queued is None:
            self._failed_starts += 1
            if self._failed_starts == ATTEMPTS:
                _give_up("workers of the Ray cluster do not start", problem)
            return
        client = queued.job.client
        self._lost[client] = self._lost.get(client, 0) + 1
        if self._lost[client] == ATTEMPTS:
            _give_up(f"{ATTEMPTS} workers died over client {client!r}", problem)
        self._queue.put_back(queued)


def _give_up(what: str, problem: Exception) -> NoReturn:
    reason = " ".join(str(problem).split())
    raise WorkerDied(f"{what}; was the last one killed, or out of memory? Ray says: {reason:.600}")
